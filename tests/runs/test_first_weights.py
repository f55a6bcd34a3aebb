"""One seed gives the same first weights with every engine, on every number of ranks, and after any draws."""

from contextlib import closing

import pytest
import torch
from tests.commands import train_to_end
from tests.configuration.compositions import validated
from tests.runs.written import same

from bapo_lightning.runs.build import build_engine, module_parts
from bapo_lightning.system.random_states import random_states
from bapo_lightning.system.ranks.rank_group import ALONE
from bapo_lightning.tools.export.checkpoint_weights import policy_state

LORA = ("model/lora=default", "model.lora.rank=4")
ENGINES = ("rollout=hf", "rollout=hf_child")


@pytest.mark.parametrize("engine", ENGINES)
def test_making_an_engine_leaves_the_random_generators_as_they_are(engine):
    before = random_states()
    with closing(build_engine(validated(engine), ALONE)):
        assert same(random_states(), before)


def first_adapters(draws, *overrides):
    torch.manual_seed(draws)
    policy = module_parts(validated(*LORA, *overrides))["make_policy"]()
    return {name: weight for name, weight in policy.named_parameters() if ".lora_" in name}


def test_first_adapters_depend_on_the_seed_of_the_run_alone():
    torch.manual_seed(5)
    before = random_states()
    found = first_adapters(5)
    assert same(random_states(), before)
    assert same(first_adapters(6), found) and not same(first_adapters(5, "seed=1"), found)


@pytest.mark.slow
def test_one_seed_gives_the_same_adapters_with_every_engine_and_number_of_ranks(tmp_path):
    """After one update, which leaves them as they are: the up factors are 0, so these have no gradient."""
    own = (*LORA, "regime=on_policy", "callbacks.validation.every=0", "callbacks.checkpoint.every=1")
    found = []
    for chosen in (*ENGINES, "strategy=ddp", "strategy=fsdp"):
        folder, ranks = (
            tmp_path / chosen.replace("=", "-"),
            ["trainer.devices=2"] * chosen.startswith("strategy"),
        )
        train_to_end(folder, 1, *own, chosen, *ranks, forks=True)
        state = policy_state(folder / "checkpoints/update000001")
        found.append({name: weight for name, weight in state.items() if ".lora_A." in name})
    assert found[0] and all(same(others, found[0]) for others in found)
