"""Advantages of rewards row by row: numbers by hand, and loops over random tables."""

import numpy as np
import pytest
import torch
from tests.zoo import rewards as reference

from bapo_lightning.algorithms.asymre import shifted_mean
from bapo_lightning.algorithms.maxrl import maxrl
from bapo_lightning.algorithms.pass_at_k import best_minus_second
from bapo_lightning.algorithms.w_reinforce import psr_nsr
from bapo_lightning.objectives.advantages.group import group_advantages

ROWS = torch.tensor([[1.0, 0.0, 0.0, 0.0], [1.0, 1.0, 1.0, 0.0], [0.0, 0.0, 0.0, 0.0]])


def rows(values):
    return [pytest.approx(row, abs=1e-4) for row in values]


@pytest.mark.parametrize(
    ("advantages", "expected"),
    [
        (
            lambda table: group_advantages(table, "none"),  # Dr. GRPO
            [[0.75, -0.25, -0.25, -0.25], [0.25, 0.25, 0.25, -0.75], [0] * 4],
        ),
        (
            lambda table: group_advantages(table, "none", "leave_one_out"),  # RLOO
            [[1, -1 / 3, -1 / 3, -1 / 3], [1 / 3, 1 / 3, 1 / 3, -1], [0] * 4],
        ),
        (maxrl, [[3, -1, -1, -1], [1 / 3, 1 / 3, 1 / 3, -1], [0] * 4]),
        (best_minus_second, [[2, 0, 0, 0], [0] * 4, [0] * 4]),  # the deviation is a half
        (lambda table: best_minus_second(table, "none"), [[1, 0, 0, 0], [0] * 4, [0] * 4]),
        (lambda table: psr_nsr(table, 1, 0), [[1, 0, 0, 0], [1, 1, 1, 0], [0] * 4]),  # PSR
        (lambda table: psr_nsr(table, 0, 1), [[0, -1, -1, -1], [0, 0, 0, -1], [-1] * 4]),  # NSR
        (psr_nsr, [[0.1, -1, -1, -1], [0.1, 0.1, 0.1, -1], [-1] * 4]),  # W-REINFORCE
        (shifted_mean, [[0.85, -0.15, -0.15, -0.15], [0.35, 0.35, 0.35, -0.65], [0.1] * 4]),
    ],
)
def test_three_groups_have_the_literal_numbers(advantages, expected):
    assert advantages(ROWS).tolist() == rows(expected)


@pytest.mark.parametrize(
    ("advantages", "by_loops"),
    [
        (lambda table: group_advantages(table, "none"), reference.dr_grpo),
        (lambda table: group_advantages(table, "none", "leave_one_out"), reference.rloo),
        (maxrl, reference.maxrl),
        (best_minus_second, reference.pass_at_k),
        (lambda table: shifted_mean(table, 0.3), lambda table: reference.asymre(table, 0.3)),
    ],
)
def test_random_rewards_give_what_loops_give_and_rows_do_not_touch_each_other(advantages, by_loops):
    table = np.random.default_rng(0).uniform(0, 2, (7, 5))
    table[3] = table[3, 0]
    found = advantages(torch.from_numpy(table))
    np.testing.assert_allclose(found, by_loops(table), atol=1e-12)
    torch.testing.assert_close(advantages(torch.from_numpy(table[2:4])), found[2:4])


@pytest.mark.parametrize("advantages", [maxrl, best_minus_second, shifted_mean])
def test_a_group_of_one_is_refused_by_what_compares(advantages):
    with pytest.raises(ValueError, match=r"a group of 1 .* at least 2 answers per problem"):
        advantages(torch.ones(3, 1))


def test_positive_and_negative_samples_need_no_group():
    assert psr_nsr(torch.tensor([[1.0], [0.0]])).tolist() == [[pytest.approx(0.1)], [-1]]


def test_ties_for_the_best_have_no_pass_at_k_and_an_unknown_scale_is_refused():
    assert best_minus_second(torch.tensor([[0.5, 0.2, 0.5]])).tolist() == [[0, 0, 0]]
    with pytest.raises(ValueError, match="scale must be 'std' or 'none', got 'mad'"):
        best_minus_second(ROWS, "mad")  # type: ignore[arg-type]
