"""The head for log Z: what it sees, whom it reaches, and where it stays."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from tests.builders import group, random_model, random_policy, rollout, stale_batch

from bapo_lightning.data.batches.batch import collate
from bapo_lightning.data.batches.model_input import Layout, PromptCells, arranged
from bapo_lightning.modules.policy.factory import build_policy
from bapo_lightning.modules.policy.log_z import LogZ
from bapo_lightning.modules.policy.options import LoraOptions, ModelOptions
from bapo_lightning.modules.policy.packing import PACKED_SDPA
from bapo_lightning.modules.policy.policy import Policy

WIDTH = 64  # of the random model


def policy(packed=False):
    model = random_model().double()
    if packed:
        model.set_attn_implementation(PACKED_SDPA)
    torch.manual_seed(1)
    return Policy(model, 1.0, packed, LogZ(WIDTH).double())


def scored(made, batch, budget=10_000):
    """Log Z of the tokens by response."""
    found = {}
    for micro_batch in batch.split(budget, batch.response_mask.float(), made.layout):
        values = made(micro_batch)[3]
        for number in micro_batch.sequence.unique().tolist():
            found[number] = values[micro_batch.sequence == number]
    return found


@torch.no_grad()
def by_hand(prompt):
    """The head on the mean of a lone prompt's hidden states."""
    made = policy()
    hidden = made.model.base_model(input_ids=torch.tensor([prompt])).last_hidden_state[0]
    return float(made.log_z.layers(hidden.mean(0)))


@pytest.mark.parametrize(("packed", "budget"), [(False, 60), (True, 60), (True, 10_000)])
def test_every_token_has_that_of_its_prompt_in_any_layout(packed, budget):
    made, batch = policy(packed), stale_batch(random_policy())
    found = scored(made, batch, budget)
    assert sorted(found) == list(range(batch.num_samples))
    for number, sample in enumerate(batch.rollouts):
        expected = [by_hand(list(sample.prompt_ids))] * sample.length
        assert found[number].tolist() == pytest.approx(expected, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("packed", [False, True])
def test_responses_to_one_prompt_share_it_even_where_their_beginning_is_too_old(packed):
    prompt = [9, 2, 8]
    begun = rollout(prompt, [3, 4], [-1.0] * 2, version=0)
    resumed = replace(begun, segments=begun.segments + rollout([], [5, 6, 7], [-1.0] * 3, 4).segments)
    fresh = rollout(prompt, [1], [-1.0], version=4)
    batch = collate([group("p", [resumed, fresh], [1.0, 0.0], [1.0, -1.0])], {}, oldest_trained=4)
    found = scored(policy(packed), batch)
    expected = by_hand(prompt)
    assert found[0].tolist() == pytest.approx([expected] * 3)
    assert found[1].tolist() == pytest.approx([expected])


@pytest.mark.parametrize(("layout", "cells"), [
    (Layout.PADDED, [0, 1, 5, 6, 7, 10, 11]),  # rows of five
    (Layout.PACKED, [0, 1, 4, 5, 6, 9, 10]),  # lengths of 4, 5 and 3
    (Layout.SHARED, [0, 1, 3, 4, 5, 0, 1]),  # the third stands behind the prompt of the first
])  # fmt: skip
def test_cells_of_the_prompts_by_hand(layout, cells):
    numbers, prompts, responses = np.array([0, 1, 0]), np.array([2, 3, 2]), np.array([2, 2, 1])
    grid = arranged(layout, numbers, prompts, prompts + responses)
    assert PromptCells(grid, prompts, responses).cells().tolist() == cells


def test_it_is_trained_through_to_the_model_and_saved_but_no_weight_of_it():
    made = policy()
    names = [name for name, _ in made.named_weights()]
    assert names and not any("log_z" in name for name in names) and made.num_weights == len(names)
    assert {f"log_z.{name}" for name in made.log_z.state_dict()} < set(made.state_dict())
    assert set(made.log_z.parameters()) < set(made.trained_parameters())
    batch = stale_batch(random_policy(), num_groups=1)
    (micro_batch,) = batch.split(10_000, batch.response_mask.float())
    made(micro_batch)[3].sum().backward()
    assert all(each.grad is not None and each.grad.abs().max() > 0 for each in made.log_z.parameters())
    assert made.model.base_model.layers[0].self_attn.q_proj.weight.grad.abs().max() > 0


@pytest.fixture
def folder(tmp_path):
    random_model().save_pretrained(tmp_path)
    return str(tmp_path)


def test_it_is_the_same_however_the_generator_stands_and_leaves_it_as_it_was(folder):
    torch.manual_seed(5)
    one = build_policy(ModelOptions(folder), 1.0, log_z=True)
    state = torch.get_rng_state()
    other = build_policy(ModelOptions(folder), 1.0, log_z=True)
    assert torch.equal(torch.get_rng_state(), state)
    for name, weight in one.log_z.state_dict().items():
        assert torch.equal(weight, other.log_z.state_dict()[name])
    assert build_policy(ModelOptions(folder), 1.0, on_meta=True, log_z=True).log_z.layers[0].weight.is_meta
    assert build_policy(ModelOptions(folder), 1.0).log_z is None


def test_it_has_the_precision_of_what_is_trained(folder):
    def dtype(**options):
        made = build_policy(ModelOptions(folder, dtype="bfloat16", **options), 1.0, log_z=True)
        batch = stale_batch(random_policy(), num_groups=1)
        (micro_batch,) = batch.split(10_000, batch.response_mask.float())
        assert made(micro_batch)[3].dtype == torch.float32
        return made.log_z.layers[0].weight.dtype

    assert dtype() == torch.bfloat16
    assert dtype(lora=LoraOptions(2, 4)) == torch.float32, "as the adapters"
