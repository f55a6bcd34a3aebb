import pytest
from tests.algorithms.by_hand import exact, pulls
from tests.token_tables import table

from bapo_lightning.algorithms.drpo import drpo


def test_a_token_that_moved_with_its_advantage_is_weakened_and_one_against_it_is_not():
    made = table(exact(2, -2), logp=exact(0.6, 0.6).log(), behaviour_logp=exact(0.4, 0.4).log())
    # r = 1.5, |p - q| = 0.2
    assert pulls(lambda each: drpo(each, width=0.5), made) == pytest.approx([3 * 0.6, -3 * 1.4])
