"""A policy whose blocks compute in bfloat16 on float32 weights."""

import pytest
import torch
from tests.builders import random_policy, stale_batch
from tests.modules.policy.families import family_folder, family_model
from tests.modules.policy.scoring import joined, scored

from bapo_lightning.modules.policy.factory import build_policy
from bapo_lightning.modules.policy.options import LoraOptions, ModelOptions
from bapo_lightning.modules.policy.policy import Policy

ROUNDING = 0.2  # nats: what a proof of a sync allows for


@pytest.mark.parametrize("packing", ["none", "padding_free"])
@pytest.mark.parametrize("lora", [None, LoraOptions(2, 4)])
@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
def test_scores_are_rounded_and_weights_gradients_and_results_stay_float32(family, lora, packing, tmp_path):
    path = family_folder(family, tmp_path)
    batch = stale_batch(Policy(family_model(family), 1.0), num_groups=2)
    torch.manual_seed(0)
    policy = build_policy(ModelOptions(path, packing=packing, lora=lora), 1.0)
    exact, exact_gradients = scored(policy, batch)
    policy.mix_precision()
    mixed, gradients = scored(policy, batch)
    assert 0 < float((mixed - exact).abs().max()) < ROUNDING
    assert {each.dtype for each in policy.parameters()} == {torch.float32}
    own, expected = joined(gradients), joined(exact_gradients)
    assert own.dtype == torch.float32
    assert float(torch.cosine_similarity(own, expected, dim=0)) > 0.99


def test_checkpointed_layers_round_as_others_do(tmp_path):
    path = family_folder("llama", tmp_path)
    batch = stale_batch(Policy(family_model("llama"), 1.0), num_groups=2)
    found = []
    for checkpointed in (False, True):
        policy = build_policy(ModelOptions(path, activation_checkpointing=checkpointed), 1.0)
        policy.mix_precision()
        found.append(scored(policy, batch))
    (logp, gradients), (again, gradients_again) = found
    assert torch.equal(logp, again)
    assert gradients.keys() == gradients_again.keys()
    assert all(map(torch.equal, gradients.values(), gradients_again.values()))


def test_a_reference_rounds_as_its_policy_does():
    policy, reference = random_policy(), random_policy()
    policy.keep_reference(reference)
    policy.mix_precision()
    assert reference.is_mixed


def test_scoring_rollouts_equals_the_pass_of_an_update_to_the_bit():
    policy = random_policy()
    policy.mix_precision()
    batch = stale_batch(policy, num_groups=2)
    rollouts = [sample.rollout for group in batch.groups for sample in group.samples]
    lists = policy.response_logprobs(rollouts, 100_000)
    in_update, _ = scored(policy, batch)
    assert sorted(value for found in lists for value in found) == sorted(in_update.tolist())  # rows by length
