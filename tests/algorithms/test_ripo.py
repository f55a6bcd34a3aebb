import pytest
from tests.algorithms.by_hand import exact, pulls
from tests.token_tables import table

from bapo_lightning.algorithms.ripo import ripo


def test_rare_tokens_may_move_further():
    behaviour_logp = exact(0.5, 0.2, 0.5, 0.2).log()
    made = table(exact(1, 1, -1, -1), exact(1.4, 1.4, 0.6, 0.6), behaviour_logp=behaviour_logp)
    # sqrt(0.05 / 0.5) is 0.32, and sqrt(0.05 / 0.2) is 0.5
    assert pulls(ripo, made) == pytest.approx([0.0, 1.4, 0.0, -0.6])
