import pytest
import torch
from tests.algorithms.by_hand import exact, prepared, pulls
from tests.token_tables import table

from bapo_lightning.algorithms.p3o import P3O


def size(made):
    return float(P3O().prepare(made)["sample_size"])


def test_it_caps_by_the_effective_sample_size_and_pulls_back():
    made = table(exact(1, -1, 0), exact(3.0, 1.0, 0.5))
    assert size(made) == pytest.approx(4.5**2 / (3 * (9 + 1 + 0.25)))
    rest = 1 - size(made)
    expected = [size(made) - rest * (1 - 1 / 3), -size(made), -rest * (1 - 1 / 0.5)]
    assert pulls(P3O(), prepared(P3O(), made)) == pytest.approx(expected)


def test_it_does_not_explode_where_a_token_became_impossible():
    made = table(torch.tensor([0.0, 0.0]), torch.tensor([1e-6, 1.0]), prepared={"sample_size": 0.5})
    assert pulls(P3O(), made) == pytest.approx([-0.5, 0.0])
