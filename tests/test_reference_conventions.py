"""Where Algorithm 1 is silent or differs, reference.py and a run's search do as docs/algorithm.md says."""

import math
from functools import reduce
from operator import add

import pytest
import torch
from tests.token_tables import table

from bapo_lightning.modules.bound_rules import contributions
from bapo_lightning.objectives.advantages.group import group_advantages
from bapo_lightning.objectives.bounds import bound_grid, search_bounds
from bapo_lightning.objectives.surrogate import LOG_RATIO_LIMIT, importance_ratio
from bapo_lightning.reference import Settings, search


def found(tokens, low, high, target):
    """(low, high, share) by reference.py; it must be what a run finds."""
    tables = [table(**tokens)]
    by_reference = search(Settings(low=low, high=high, target=target), tables)
    lows, highs = bound_grid(*low), bound_grid(*high)
    curves = contributions(tables[0], "rollout_prob", lows, highs, "gradient")
    by_run = search_bounds(*curves, lows, highs, target)
    torch.testing.assert_close(by_reference[:3], by_run[:3], equal_nan=True, rtol=1e-6, atol=0)
    return [round(float(value), 6) for value in by_reference[:3]]


LOW, HIGH = (0.6, 0.9, 0.02), (1.2, 3.0, 0.05)


@pytest.mark.parametrize("advantages", [[0.0, 0.0], [-1.0, 1.0]])
def test_a_where_nothing_contributes_the_bounds_stay_at_their_start(advantages):
    ratio = torch.tensor([0.1, 5.0])  # with advantages: both clipped
    low, high, share = found({"advantages": advantages, "ratio": ratio}, LOW, HIGH, 0.5)
    assert (low, high) == (0.6, 1.2) and math.isnan(share)


def test_b_with_one_lower_bound_the_upper_one_still_rises():
    tokens = {"advantages": [1.0, -1.0], "ratio": torch.tensor([1.5, 1.0])}
    assert found(tokens, (0.8, 0.8, 0.02), (1.2, 2.0, 0.1), 0.5) == [0.8, 1.5, 0.6]


def test_c_the_last_point_of_a_grid_is_kept_though_it_is_missed_in_binary():
    grid = bound_grid(*LOW)
    assert reduce(add, [0.02] * 15, 0.6) > 0.9, "adding the step passes the end"
    assert len(grid) == 16 and float(grid[-1]) == pytest.approx(0.9)
    tokens = {"advantages": [1.0, -1.0], "ratio": torch.tensor([1.0, 0.89])}
    assert found(tokens, LOW, HIGH, 0.6) == [0.9, 3.0, 1.0]


def test_d_a_token_exactly_on_its_bound_is_alive():
    on_bounds = {"advantages": [1.0, -1.0], "ratio": torch.tensor([1.25, 0.5])}
    assert found(on_bounds, (0.5, 0.75, 0.25), (1.25, 1.5, 0.25), 0.7) == [
        0.5,
        1.25,
        pytest.approx(1.25 / 1.75),
    ]


def test_e_log_ratios_are_limited():
    ratio = importance_ratio(torch.tensor([50.0, -50.0]), torch.zeros(2))
    assert ratio.log().tolist() == pytest.approx([LOG_RATIO_LIMIT, -LOG_RATIO_LIMIT])


def test_f_a_contribution_carries_the_weight_of_its_token_in_the_loss():
    tokens = {"advantages": [1.0, -1.0], "ratio": 1.0, "behaviour_logp": torch.tensor([0.5, 0.5]).log()}
    assert found(tokens, LOW, HIGH, 0.5)[2] == 0.5
    assert found({**tokens, "weight": torch.tensor([3.0, 1.0])}, LOW, HIGH, 0.5)[2] == 0.75


def test_g_advantages_have_a_floor_under_the_deviation_and_equal_groups_have_none():
    rewards = torch.tensor([[1.0, 0.0], [0.1, 0.1]])
    scaled, equal = group_advantages(rewards).tolist()
    assert scaled == pytest.approx([0.5 / (math.sqrt(0.5) + 1e-6), -0.5 / (math.sqrt(0.5) + 1e-6)])
    assert equal == [0.0, 0.0]
