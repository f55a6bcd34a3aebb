"""Tokens drawn at random, the same ones however the update is split."""

import torch
from tests.token_tables import table

from bapo_lightning.objectives.picks import first_of, random_order
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
