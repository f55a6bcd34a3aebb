from math import log

import numpy as np
import pytest
from tests.algorithms.by_hand import exact, pulls
from tests.token_tables import table
from tests.zoo.reference import Array, Columns, Reference
from tests.zoo.references_tokens import clip

from bapo_lightning.algorithms.estr import estr


def closed_form(columns: Columns) -> Array:
    """ESTR (arXiv 2607.22186): PPO's where (log r)^2 <= H + 0.01, both of the behaviour policy."""
    known = np.exp(columns["candidate_behaviour_logp"])
    every = np.concatenate([known, 1 - known.sum(1, keepdims=True)], 1)
    entropy = -(every * np.log(every)).sum(1)
    kept = (columns["logp"] - columns["behaviour_logp"]) ** 2 <= entropy + 0.01
    return kept * clip(columns)


REFERENCES = {"estr": Reference(closed_form)}
ENDLESS = "estr.dual_clip estr.floor estr.head estr.threshold"
HARMLESS = {"ESTR keeps every token": ((1e30, 10**9, 2**53 + 1), ENDLESS)}


def made(moved, behaviour):
    """A table of one place for each (log r, behaviour policy over the vocabulary), with bounds [0, 9]."""
    known = exact(*behaviour).reshape(len(moved), -1).log()
    ones = exact(*[1] * len(moved))
    return table(ones, exact(*moved).exp(), low=0.0, high=9.0, candidate_behaviour_logp=known)


def kept(own, **options):
    return [pull > 0 for pull in pulls(lambda known: estr(known, **options), own)]


def test_the_region_is_as_wide_as_the_root_of_the_entropy():
    even, sure = [0.25] * 4, [1.0, 0.0, 0.0, 0.0]
    edge = (log(4) + 0.01) ** 0.5
    own = made([0.99 * edge, -1.01 * edge, 0.099, -0.101], [*even, *even, *sure, *sure])
    assert kept(own) == [True, False, True, False]
    assert kept(own, threshold=1.1) == [True, True, True, True]
    assert kept(own, floor=0.02)[2:] == [True, True]


@pytest.mark.parametrize(("head", "entropy"), [(2, log(4) / 2 + log(2) / 2), (3, log(4)), (None, log(4))])
def test_what_is_outside_of_the_head_is_one_outcome(head, entropy):
    edge = (entropy + 0.01) ** 0.5
    own = made([0.999 * edge, 1.001 * edge], [0.25] * 8)
    assert kept(own, head=head) == [True, False]
