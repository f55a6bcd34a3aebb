import pytest
from tests.algorithms.by_hand import exact, pulls, refusal
from tests.token_tables import table

from bapo_lightning.algorithms.tis import tis

RATIOS = exact(0.01, 0.5, 1.0, 1.1, 2.0, 100.0)


def test_it_truncates_above_only():
    right, wrong = (table(exact(*[advantage] * 6), RATIOS) for advantage in (1, -1))
    assert pulls(tis, right) == pytest.approx([0.01, 0.5, 1.0, 1.0, 1.0, 1.0])
    found = pulls(lambda tokens: tis(tokens, cap=2.0), wrong)
    assert found == pytest.approx([-0.01, -0.5, -1.0, -1.1, -2.0, -2.0])


def test_a_cap_of_zero_is_refused():
    assert refusal("tis", "cap=0").startswith("cap=0 must be positive")
