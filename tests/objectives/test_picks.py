"""Tokens drawn at random, the same ones however the update is split."""

import pytest
import torch
from tests.token_tables import table

from bapo_lightning.objectives.picks import first_of, random_order
from bapo_lightning.objectives.sequences import at_next, rank_in_sequence
from bapo_lightning.objectives.token_table import TokenTable

SIZE = 10
ROWS = torch.arange(SIZE)


def made(**columns):
    logp = -torch.rand(SIZE, generator=torch.Generator().manual_seed(0))
    return table(torch.ones(SIZE), behaviour_logp=logp, **{"position": ROWS} | columns)


def test_the_order_is_that_of_the_tokens_and_not_of_their_rows():
    tokens = made(sequence=torch.zeros(SIZE, dtype=torch.long))
    shuffle = torch.randperm(SIZE, generator=torch.Generator().manual_seed(1))
    shuffled = TokenTable.of({name: values[shuffle] for name, values in tokens.columns.items()})
    assert shuffle[random_order(shuffled)].tolist() == random_order(tokens).tolist()
    assert sorted(random_order(tokens).tolist()) == ROWS.tolist()


def test_every_token_comes_first_about_as_often():
    first = torch.stack([random_order(made(age=age))[0] for age in range(2000)])
    counts = first.bincount(minlength=SIZE)
    assert counts.min() > 150 and counts.max() < 250, counts  # 200 +- 13


def test_each_of_a_tokens_columns_matters():
    other = {name: torch.full((SIZE,), 3) for name in ("sequence", "position", "age")}
    orders = [random_order(made(**{name: column})).tolist() for name, column in other.items()]
    assert len({tuple(order) for order in orders}) == 3


def test_as_many_are_taken_as_make_up_the_share_and_at_least_one():
    tokens, able = made(), ROWS % 2 == 0
    assert first_of(ROWS, able, 0.35, tokens.count).nonzero().flatten().tolist() == [0, 2, 4]
    assert first_of(ROWS.flip(0), able, 0.01, tokens.count).nonzero().flatten().tolist() == [8]
    assert not first_of(ROWS, able & False, 1.0, tokens.count).any()
    counted = made(count=torch.tensor([0.0, 1, 4, 1, 1, 1, 1, 1, 0, 0]))
    taken = first_of(ROWS, able, 0.3, counted.count)
    assert taken.tolist() == [0, 0, 0.75, *[0] * 7], "3 of the 4 tokens that a row stands for"


VALUES = torch.tensor([0.3, 0.1, 0.2, 0.5, 0.1, 0.1])
SEQUENCE = torch.tensor([7, 7, 7, 2, 2, 9])  # as in a micro-batch: numbers of the whole minibatch


def test_a_rank_counts_the_tokens_of_the_response_with_smaller_values():
    tokens = table(torch.ones(6), sequence=SEQUENCE)
    assert rank_in_sequence(VALUES, tokens).tolist() == [2, 0, 1, 1, 0, 0]
    ties = rank_in_sequence(torch.tensor([0.5, 0.0, 0.5, 0.0]), table(torch.ones(4), sequence=0))
    assert ties.tolist() == [2, 0, 2, 0], "of equal values none is the smaller"


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
    found = at_next(VALUES, table(torch.ones(6), sequence=SEQUENCE)).tolist()
    assert found == pytest.approx([0.1, 0.2, 0, 0.1, 0, 0])


def test_the_tokens_of_a_row_are_followed_by_each_other_and_a_row_without_tokens_follows_none():
    tokens = table(torch.ones(6), sequence=SEQUENCE, count=torch.tensor([1.0, 3.0, 0.0, 1.0, 2.0, 1.0]))
    expected = [0.1, (0.1 + 0.1 + 0) / 3, 0, 0.1, 0.1 / 2, 0]
    assert at_next(VALUES, tokens).tolist() == pytest.approx(expected)
