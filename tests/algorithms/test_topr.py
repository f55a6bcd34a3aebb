from math import exp, log

import pytest
import torch
from tests.algorithms.by_hand import exact, pulls, refusal
from tests.configuration.compositions import found
from tests.token_tables import table

from bapo_lightning.algorithms.topr import plus_or_minus_one, topr
from bapo_lightning.objectives.objective import slopes


@pytest.mark.parametrize(
    ("level", "wrong"),
    [("token", [0.5, 0.4, 1.0]), ("sequence", [0.4] * 3), ("geometric", [0.4 ** (1 / 3)] * 3)],
)
def test_it_tapers_wrong_answers_by_the_ratio_of_its_level_and_imitates_right_ones(level, wrong):
    sequence = torch.tensor([0, 0, 0, 1, 1, 1])
    made = table(exact(-1, -1, -1, 1, 1, 1), exact(*[0.5, 0.4, 2.0] * 2), sequence=sequence)
    tapered = [-weight for weight in wrong]
    assert pulls(lambda tokens: topr(tokens, level), made) == pytest.approx([*tapered, 1.0, 1.0, 1.0])


def test_of_a_response_whose_ratio_leaves_the_range_of_floats_it_is_finite():
    tokens = table(torch.full((100,), -1.0), 1e8, sequence=0)
    assert slopes(topr, tokens).isfinite().all()
    assert slopes(topr, table(-torch.ones(100), 1e-8, sequence=0)).abs().max() == 0


def test_a_row_that_stands_for_several_tokens_counts_as_often():
    together = table(-torch.ones(2), torch.tensor([0.5, 0.9]), count=torch.tensor([1.0, 2.0]), sequence=0)
    assert slopes(topr, together)[0] == pytest.approx(-exp(log(0.5) + 2 * log(0.9)) / 0.5)


def test_rewards_become_plus_or_minus_one():
    rewards = torch.tensor([[1.0, 0.0, -0.5], [0.3, 1.0, 1.0]])
    assert plus_or_minus_one(rewards).tolist() == [[1, -1, -1], [1, 1, 1]]


def test_another_reading_of_the_paper_is_an_option_and_no_other_level_is():
    assert found("algorithm=topr", "algorithm.objective.level=geometric") == []
    expected = "level=word is none of its values; write one of sequence, token, geometric"
    assert refusal("topr", "level=word").startswith(expected)
