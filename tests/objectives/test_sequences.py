"""Sums and ranks over responses, on tables with rows that stand for several tokens."""

import pytest
import torch
from tests.token_tables import table

from bapo_lightning.objectives.sequences import at_next, rank_in_sequence

VALUES = torch.tensor([0.3, 0.1, 0.2, 0.5, 0.1, 0.1])
SEQUENCE = torch.tensor([7, 7, 7, 2, 2, 9])  # as in a micro-batch: numbers of the whole minibatch


def test_a_rank_counts_the_tokens_of_the_response_with_smaller_values():
    tokens = table(torch.ones(6), sequence=SEQUENCE)
    assert rank_in_sequence(VALUES, tokens).tolist() == [2, 0, 1, 1, 0, 0]


def test_of_equal_values_none_is_the_smaller():
    tokens = table(torch.ones(4), sequence=0)
    assert rank_in_sequence(torch.tensor([0.5, 0.0, 0.5, 0.0]), tokens).tolist() == [2, 0, 2, 0]


def test_a_row_counts_as_often_as_it_stands_for_tokens():
    tokens = table(torch.ones(6), sequence=SEQUENCE, count=torch.tensor([1.0, 3.0, 0.0, 1.0, 2.0, 1.0]))
    assert rank_in_sequence(VALUES, tokens).tolist() == [3, 0, 3, 2, 0, 0]


@pytest.mark.parametrize("seed", range(3))
def test_ranks_are_those_of_each_response_alone(seed):
    generator = torch.Generator().manual_seed(seed)
    sequence = torch.randint(0, 6, (40,), generator=generator).unique_consecutive().unique()
    sequence = sequence[torch.randperm(len(sequence), generator=generator)].repeat_interleave(5)
    values = torch.rand(len(sequence), generator=generator)
    found = rank_in_sequence(values, table(torch.ones(len(sequence)), sequence=sequence))
    for number in sequence.unique():
        own = sequence == number
        assert found[own].tolist() == values[own].argsort().argsort().tolist()


def test_a_token_is_followed_by_the_next_one_of_its_response():
    assert at_next(VALUES, table(torch.ones(6), sequence=SEQUENCE)).tolist() == pytest.approx(
        [0.1, 0.2, 0, 0.1, 0, 0]
    )


def test_the_tokens_of_a_row_are_followed_by_each_other_and_a_row_without_tokens_follows_none():
    tokens = table(torch.ones(6), sequence=SEQUENCE, count=torch.tensor([1.0, 3.0, 0.0, 1.0, 2.0, 1.0]))
    expected = [0.1, (0.1 + 0.1 + 0) / 3, 0, 0.1, 0.1 / 2, 0]
    assert at_next(VALUES, tokens).tolist() == pytest.approx(expected)
