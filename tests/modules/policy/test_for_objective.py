"""A policy has what its objective needs, and a reference policy stays what it was."""

from functools import partial

import pytest
import torch
from tests.builders import random_model, random_policy, stale_batch, step

from bapo_lightning.modules.bound_rules import FixedBounds
from bapo_lightning.modules.policy.factory import build_policy
from bapo_lightning.modules.policy.for_objective import policy_for
from bapo_lightning.modules.policy.lora import add_adapters
from bapo_lightning.modules.policy.options import LoraOptions, ModelOptions
from bapo_lightning.objectives.objective import clip
from bapo_lightning.objectives.token_table import reads


@reads("reference_logp", "log_z")
def compares(table):
    return table.log_ratio * (table["reference_logp"] + table["log_z"])


@reads("entropy_gradient")
def spreads(table):
    return table.entropy


@pytest.fixture
def folder(tmp_path):
    random_model().save_pretrained(tmp_path)
    return str(tmp_path)


def built(folder, objective, **options):
    return policy_for(objective, partial(build_policy, ModelOptions(folder, **options), 1.0), None, None)


def updated(policy, batch, updates=3):
    optimizer = torch.optim.SGD(policy.trained_parameters(), lr=1e-3)
    for _ in range(updates):
        policy.zero_grad()
        step(policy, FixedBounds(0.8, 1.2), batch)
        optimizer.step()


@pytest.mark.parametrize("lora", [None, LoraOptions(2, 4)])
def test_reference_log_probs_are_those_of_the_untouched_model_after_several_updates(folder, lora):
    rollouts = stale_batch(random_policy()).rollouts
    untouched = build_policy(ModelOptions(folder), 1.0).response_logprobs(rollouts, 200)
    policy = built(folder, compares, lora=lora)
    updated(policy, stale_batch(random_policy()))
    assert policy.reference_logprobs(rollouts, 200) == untouched
    assert policy.response_logprobs(rollouts, 200) != untouched


def test_a_reference_is_no_part_of_the_state_and_of_the_parameters(folder):
    frozen = build_policy(ModelOptions(folder), 1.0, frozen=True)
    assert frozen.trained_parameters() == [] and frozen.state_dict() == {}
    with_it, without = built(folder, compares), built(folder, clip)
    own = {name for name in with_it.state_dict() if not name.startswith("log_z.")}
    assert own == set(without.state_dict())
    trained = {name for name, _ in with_it.named_parameters() if not name.startswith("log_z.")}
    assert trained == {name for name, _ in without.named_parameters()}


def test_others_are_built_once_and_without_anything_more():
    asked, adapted = [], random_policy()
    add_adapters(adapted.model, LoraOptions(2, 4))

    def make_policy(made=None, **options):
        asked.append(options)
        return made or random_policy()

    policy = policy_for(clip, make_policy, None, None)
    assert asked == [{}] and policy.log_z is None and not policy.entropy_requires_grad
    assert policy_for(spreads, make_policy, None, None).entropy_requires_grad and asked == [{}, {}]
    with pytest.raises(ValueError, match="no adapters"):
        policy.reference_logprobs([], 100)
    policy_for(compares, make_policy, None, None)
    assert asked[2:] == [{"log_z": True}, {"frozen": True}]
    policy_for(compares, partial(make_policy, adapted), None, None)
    assert asked[4:] == [{"log_z": True}], "adapters need no second copy"
