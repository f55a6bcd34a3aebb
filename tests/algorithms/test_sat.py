from math import ceil

import numpy as np
import pytest
from tests.algorithms.by_hand import exact, prepared, pulls
from tests.token_tables import table
from tests.zoo.reference import Array, Columns, Reference
from tests.zoo.references_tokens import clip

from bapo_lightning.algorithms.sat import SAT


def closed_form(columns: Columns) -> Array:
    """SAT (arXiv 2607.18722): PPO. For the tenth of the tokens with the largest d = |log r|, the bound on
    their own side is drawn in by q^2 / (q^2 + d^2), q the largest d of the others.
    """
    far = np.abs(columns["log_ratio"])
    edge = np.sort(far)[ceil(round(0.9 * len(far), 9)) - 1]
    factor = np.ones_like(far)
    factor[far > edge] = edge**2 / (edge**2 + far[far > edge] ** 2)
    low, high = 1 - 0.2 * factor, 1 + 0.2 * factor
    own = {"low": np.where(columns["ratio"] < 1, low, 0.8), "high": np.where(columns["ratio"] > 1, high, 1.2)}
    return clip({**columns, **own})


REFERENCES = {"sat": Reference(closed_form)}
HARMLESS = {"SAT cuts no negative token": ((1e30, 10**9, 2**53 + 1), "SAT.dual_clip")}
HOMONYMS = {"sat": "a weekday"}


def made(ratios, advantages, **columns):
    return table(exact(*advantages), exact(*ratios), low=0.8, high=1.2, **columns)


def test_the_bound_closes_in_on_the_side_to_which_a_token_of_the_tail_has_moved():
    ratios = [1.0, 1.02, 1.05, 1.15, 0.84]  # |log r| ends with 0.140 and 0.174
    own = prepared(SAT(tail=0.2), made(ratios, [1, 1, 1, 1, -1]))
    edge, last = exact(1.15, 1 / 0.84).log().tolist()
    factor = edge**2 / (edge**2 + last**2)
    assert own["contraction"].tolist() == pytest.approx([1, 1, 1, 1, factor])
    # the lower bound of the last is 1 - 0.2 * 0.39 = 0.92, so that it is clipped
    assert pulls(SAT(tail=0.2), own) == pytest.approx([*ratios[:4], 0.0])
    back = prepared(SAT(tail=0.2), made(ratios, [1, 1, 1, 1, 1]))
    assert pulls(SAT(tail=0.2), back) == pytest.approx(ratios), "a pull back to 1 stays"


def test_without_staleness_or_with_no_tail_it_is_ppo():
    assert prepared(SAT(), made([1.0] * 20, [1] * 20))["contraction"].tolist() == [1.0] * 20
    assert prepared(SAT(tail=0.001), made([0.5, 1, 2], [1] * 3))["contraction"].tolist() == [1.0] * 3


def test_rows_of_several_tokens_count_as_often_and_those_of_none_not_at_all():
    counted = made([1.1, 1.2, 1.3, 9.0], [1] * 4, count=exact(8, 1, 1, 0))
    several = made([1.1] * 8 + [1.2, 1.3], [1] * 10)
    found, expected = (prepared(SAT(), each)["contraction"].tolist() for each in (counted, several))
    assert found[:3] == pytest.approx(expected[7:])
