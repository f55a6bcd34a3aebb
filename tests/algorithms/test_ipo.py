import pytest
from tests.algorithms.by_hand import exact, pulls
from tests.token_tables import table

from bapo_lightning.algorithms.ipo import ipo


def test_it_masks_whatever_moved_far_and_caps_the_ratio():
    logp, behaviour_logp = exact(0.7, 0.7, 0.5, 0.2).log(), exact(0.3, 0.3, 0.4, 1e-6).log()
    made = table(exact(1, -1, 1, 1), logp=logp, behaviour_logp=behaviour_logp)
    # risen by 0.4, with and against the advantage: masked; by 0.1: kept; by 0.2, but 200,000-fold: capped
    assert pulls(ipo, made) == pytest.approx([0.0, 0.0, 1.25, 1e4])
