from math import exp

import pytest
import torch
from tests.algorithms.by_hand import exact, pulls
from tests.token_tables import table

from bapo_lightning.algorithms.fipo import fipo

BOUNDS = {"low": 0.8, "high": 1.28}


def test_a_token_is_weighed_by_what_comes_after_it():
    ratio = exact(0.1, 0.05).exp()
    made = table(exact(1, 1), ratio, sequence=0, **BOUNDS)
    first, second = exp(0.1 + 0.5 ** (1 / 32) * 0.05), exp(0.05)
    assert pulls(fipo, made) == pytest.approx([first * exp(0.1), second * exp(0.05)])
    made = table(exact(1, 1), 1 / ratio, sequence=0, **BOUNDS)
    assert pulls(fipo, made) == pytest.approx([exp(-0.1), exp(-0.05)]), "never below 1"
    assert pulls(lambda each: fipo(each, least=0.0), made)[0] == pytest.approx(exp(-0.1) / first)


def test_what_comes_a_half_life_later_counts_half():
    ratio = torch.ones(33, dtype=torch.float64)
    ratio[-1] = exp(0.1)
    made = table(torch.ones_like(ratio), ratio, sequence=0, **BOUNDS)
    assert pulls(fipo, made)[0] == pytest.approx(exp(0.05))


def test_what_exploded_is_not_strengthened():
    assert pulls(fipo, table(exact(-1, -1), exact(3, 5), **BOUNDS)) == pytest.approx([-3 * 1.2, -5])
    made = table(exact(1, 1), exact(1, 11), sequence=0, **BOUNDS)
    assert pulls(fipo, made) == [1, 0], "the second is clipped, and too far out to count for the first"
