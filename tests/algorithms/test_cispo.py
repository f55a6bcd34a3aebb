import pytest
from tests.algorithms.by_hand import exact, pulls
from tests.token_tables import table

from bapo_lightning.algorithms.cispo import cispo


@pytest.mark.parametrize("advantage", [1.0, -1.0])
def test_it_clips_the_weight_and_keeps_the_gradient(advantage):
    made = table(exact(*[advantage] * 6), exact(0.01, 0.5, 1.0, 1.1, 2.0, 100.0), low=0.8, high=1.2)
    weights = [0.8, 0.8, 1.0, 1.1, 1.2, 1.2]
    assert pulls(cispo, made) == pytest.approx([advantage * weight for weight in weights])
