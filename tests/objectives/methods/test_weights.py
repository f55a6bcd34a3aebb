"""Objectives that weigh log pi, by hand: CISPO, TIS, TOPR, ASPO, P3O."""

import math

import pytest
import torch
from tests.token_tables import table

from bapo_lightning.algorithms.aspo import aspo
from bapo_lightning.algorithms.cispo import cispo
from bapo_lightning.algorithms.p3o import effective_sample_size, p3o
from bapo_lightning.algorithms.tis import tis
from bapo_lightning.algorithms.topr import plus_or_minus_one, topr
from bapo_lightning.objectives.token_table import slopes

RATIOS = [0.01, 0.5, 1.0, 1.1, 2.0, 100.0]


def weights(objective, advantages, ratios=RATIOS, **columns):
    """Gradient in log pi of every token, over its advantage."""
    tokens = table(
        torch.tensor(advantages, dtype=torch.float64), torch.tensor(ratios, dtype=torch.float64), **columns
    )
    return (slopes(objective, tokens) * tokens.ratio / tokens.advantage).tolist()


def test_cispo_clips_the_weight_and_keeps_the_gradient():
    found = weights(cispo, [1.0] * 6, low=0.8, high=1.2)
    assert found == pytest.approx([0.8, 0.8, 1.0, 1.1, 1.2, 1.2])
    assert weights(cispo, [-1.0] * 6, low=0.8, high=1.2) == found


def test_tis_truncates_above_only():
    assert weights(tis, [1.0] * 6) == pytest.approx([0.01, 0.5, 1.0, 1.0, 1.0, 1.0])
    assert weights(lambda tokens: tis(tokens, cap=2.0), [-1.0] * 6) == pytest.approx(
        [0.01, 0.5, 1.0, 1.1, 2.0, 2.0]
    )


@pytest.mark.parametrize(
    ("level", "wrong"),
    [("token", [0.5, 0.4, 1.0]), ("sequence", [0.4] * 3), ("geometric", [0.4 ** (1 / 3)] * 3)],
)
def test_topr_tapers_wrong_answers_by_the_ratio_of_its_level_and_imitates_right_ones(level, wrong):
    ratios = [0.5, 0.4, 2.0] * 2
    sequence = torch.tensor([0, 0, 0, 1, 1, 1])

    def objective(tokens):
        return topr(tokens, level)

    found = weights(objective, [-1.0] * 3 + [1.0] * 3, ratios, sequence=sequence)
    assert found == pytest.approx([*wrong, 1.0, 1.0, 1.0])


def test_topr_of_a_response_whose_ratio_leaves_the_range_of_floats_is_finite():
    tokens = table(torch.full((100,), -1.0), 1e8, sequence=torch.zeros(100).long())
    assert slopes(topr, tokens).isfinite().all()
    assert slopes(topr, table(-torch.ones(100), 1e-8, sequence=torch.zeros(100).long())).abs().max() == 0


def test_rewards_become_plus_or_minus_one():
    rewards = torch.tensor([[1.0, 0.0, -0.5], [0.3, 1.0, 1.0]])
    assert plus_or_minus_one(rewards).tolist() == [[1, -1, -1], [1, 1, 1]]


def test_aspo_turns_the_weights_of_positive_tokens_round():
    bounds = {"low": 0.8, "high": 1.2}
    assert weights(aspo, [1.0] * 6, **bounds) == pytest.approx([3.0, 2.0, 1.0, 1 / 1.1, 0.0, 0.0])
    assert weights(aspo, [-1.0] * 6, **bounds) == pytest.approx([0.0, 0.0, 1.0, 1.1, 2.0, 3.0])


def test_aspo_widens_the_bounds_of_the_fifth_of_a_response_with_the_highest_entropies():
    entropy = torch.tensor([0.5, 0.1, 0.2, 0.9, 0.3, 0.4])  # the last response has one token alone
    sequence = torch.tensor([0, 0, 0, 0, 0, 1])
    ratios = [1.3] * 5 + [0.7]

    def objective(tokens):
        return aspo(tokens, widening=2.0)

    columns = {"low": 0.8, "high": 1.2, "entropy": entropy.double(), "sequence": sequence}
    found = weights(objective, [1.0] * 5 + [-1.0], ratios, **columns)
    assert found == pytest.approx([0.0, 0.0, 0.0, 1 / 1.3, 0.0, 0.0])


def test_p3o_caps_by_the_effective_sample_size_and_pulls_back():
    tokens = table(torch.tensor([1.0, -1.0, 0.0]).double(), torch.tensor([3.0, 1.0, 0.5]).double())
    size = effective_sample_size(tokens)
    assert float(size) == pytest.approx(4.5**2 / (3 * (9 + 1 + 0.25)))
    found = slopes(p3o, tokens.with_statistic(size)) * tokens.ratio
    rest = 1 - float(size)
    assert found.tolist() == pytest.approx(
        [float(size) - rest * (1 - 1 / 3), -float(size), -rest * (1 - 1 / 0.5)]
    )


def test_p3o_does_not_explode_where_a_token_became_impossible():
    tokens = table(torch.tensor([0.0, 0.0]), torch.tensor([1e-6, 1.0]))
    found = slopes(p3o, tokens.with_statistic(torch.tensor(0.5))) * tokens.ratio
    assert found.tolist() == pytest.approx([-0.5, 0.0])


def test_p3o_at_ratio_one_is_reinforce():
    tokens = table(torch.tensor([1.0, -2.0]))
    size = effective_sample_size(tokens)
    assert float(size) == 1 and slopes(p3o, tokens.with_statistic(size)).tolist() == [1, -2]


def test_a_row_that_stands_for_several_tokens_counts_as_often():
    rows = table(torch.ones(2), torch.tensor([2.0, 1.0]), count=torch.tensor([1.0, 3.0]))
    tokens = table(torch.ones(4), torch.tensor([2.0, 1.0, 1.0, 1.0]))
    assert float(effective_sample_size(rows)) == float(effective_sample_size(tokens))
    together = table(-torch.ones(2), torch.tensor([0.5, 0.9]), count=torch.tensor([1.0, 2.0]), sequence=0)
    assert slopes(topr, together)[0] == pytest.approx(-math.exp(math.log(0.5) + 2 * math.log(0.9)) / 0.5)
