import numpy as np
import torch
from tests.algorithms.by_hand import exact, pulls
from tests.token_tables import table
from tests.zoo.reference import Array, Columns, Reference, reinforce

from bapo_lightning.algorithms.cppo import cppo


def closed_form(columns: Columns) -> Array:
    """CPPO (arXiv 2606.10968, Algorithm 1): w r A of the tokens that its loop over a response keeps."""
    kept = np.zeros(len(columns["ratio"]))
    for sequence in set(columns["sequence"].tolist()):
        own = np.flatnonzero(columns["sequence"] == sequence)
        spent = allowed = 0.0
        for place, row in enumerate(own):
            share = 1 - 0.2 * place / max(len(own) - 1, 1)
            moved = np.exp(columns["logp"][row]) - np.exp(columns["proximal_logp"][row])
            least = min(0.15, 0.15 + 0.015 * allowed - spent)
            kept[row] = columns["advantage"][row] * moved <= 0 or share * abs(moved) <= least
            spent, allowed = spent + share * abs(moved), allowed + share
    return kept * columns["ratio"] * reinforce(columns)


REFERENCES = {"cppo": Reference(closed_form)}
HARMLESS = {"CPPO keeps every token": ((1e30, 10**9, 2**53 + 1), "cppo.threshold cppo.budget")}


def kept(*moved: float, advantage: float = 1.0, **options: float) -> list[bool]:
    """Whether tokens of a response keep a gradient whose probabilities have moved by so much, from 0.5."""
    own = table(
        torch.full((len(moved),), advantage, dtype=torch.float64), logp=(0.5 + exact(*moved)).log(),
        behaviour_logp=exact(0.5).log(), sequence=torch.zeros(len(moved), dtype=torch.int64),
    )  # fmt: skip
    return [pull != 0 for pull in pulls(lambda known: cppo(known, **options), own)]


def test_the_region_is_wider_at_the_end_of_a_response():
    assert kept(0.16, 0.0, 0.0, budget=9.0) == [False, True, True]
    assert kept(0.0, 0.16, 0.18, budget=9.0) == [True, True, True], "0.15 / 0.9 and 0.15 / 0.8"
    assert kept(0.0, 0.17, 0.19, budget=9.0) == [True, False, False]
    assert kept(0.16, 0.0, -0.19, advantage=-1.0, budget=9.0) == [True, True, False], "back is free"


def test_a_prefix_has_a_budget_that_grows_with_it():
    # weighted by 1, 0.9, 0.8: 0.1, 0.145, 0.161 or 0.177, of 0.15, 0.16, 0.169
    assert kept(0.1, 0.05, 0.02, budget=0.01) == [True, True, True]
    assert kept(0.1, 0.05, 0.04, budget=0.01) == [True, True, False]
    assert kept(-0.1, 0.05, 0.04, budget=0.01) == [True, True, False], "moves back are spent as well"
    assert kept(0.14, 0.04) == [True, False] and kept(0.14) == [True]
