from math import log

import pytest
from tests.algorithms.by_hand import exact, pulls
from tests.token_tables import table

from bapo_lightning.algorithms.prime_rl_dppo import prime_rl_dppo


def test_it_masks_and_pulls_every_token_back():
    made = table(exact(1, 1), logp=exact(0.6, 0.5).log(), behaviour_logp=exact(0.3, 0.4).log())
    assert pulls(prime_rl_dppo, made) == pytest.approx([-2e-3 * log(2), 1.25 - 2e-3 * log(1.25)])
