import pytest
from tests.algorithms.by_hand import exact, prepared, pulls
from tests.token_tables import table

from bapo_lightning.algorithms.acpo import ACPO


def test_bounds_widen_with_the_spread_of_a_bin_of_probability():
    logp, behaviour_logp = exact(0.9, 0.9, 0.1, 0.15).log(), exact(0.9, 0.6, 0.05, 0.15).log()
    made = table(exact(1, 1, 1, -1), logp=logp, behaviour_logp=behaviour_logp)
    own = prepared(ACPO(spread=1.0), made)
    # ratios 1 and 1.5 from 0.8 on: e = 0.2 + 0.25; ratios 2 and 1 below 0.2: e = 0.2 + 0.5
    assert own["reach"].tolist() == pytest.approx([0.45, 0.45, 0.7, 0.7])
    assert pulls(ACPO(spread=1.0), own) == pytest.approx([1.0, 0.0, 0.0, -1.0])
    wide = prepared(ACPO(spread=9.0, most=2.0), made)
    assert wide["reach"].tolist() == pytest.approx([2.0, 2.0, 2.0, 2.0])


def test_equal_ratios_leave_the_base():
    made = table(exact(1, -1), logp=exact(0.5, 0.5).log(), behaviour_logp=exact(0.5, 0.5).log())
    assert prepared(ACPO(), made)["reach"].tolist() == pytest.approx([0.2003, 0.2003])
