from math import log

import pytest
from tests.algorithms.by_hand import exact, pulls
from tests.token_tables import table

from bapo_lightning.algorithms.estr import estr


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
