from math import exp

import pytest
from tests.algorithms.by_hand import exact, pulls
from tests.token_tables import table

from bapo_lightning.algorithms.sapo import sapo


def test_it_is_reinforce_at_one_and_fades_on_both_sides():
    found = pulls(sapo, table(exact(1, -1, 1, 1, 0), exact(1, 1, 3, 1e-3, 2)))
    gate = 1 / (1 + exp(-2))
    assert found[:3] == pytest.approx([1.0, -1.0, 4 * gate * (1 - gate) * 3])
    assert 0 < found[3] < 1e-2 and found[4] == 0
