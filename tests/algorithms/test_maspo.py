from math import exp

import pytest
from tests.algorithms.by_hand import exact, pulls
from tests.token_tables import table

from bapo_lightning.algorithms.maspo import maspo


def test_it_fades_where_the_token_moves_with_its_advantage():
    behaviour = exact(1.0, 1.0, 0.001, 1.0).log()
    found = pulls(maspo, table(exact(1, 1, 1, -1), exact(2.0, 0.5, 2.0, 0.5), behaviour_logp=behaviour))
    wide = 1.03 * 0.001**-0.3
    expected = [2 * exp(-0.5 / 1.03**2), 0.5, 2 * exp(-0.5 / wide**2)]
    assert found == pytest.approx([*expected, -0.5 * exp(-0.125 * 1.03**2)])
