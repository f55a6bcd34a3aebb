import pytest
import torch
from tests.algorithms.by_hand import exact, pulls
from tests.token_tables import table

from bapo_lightning.algorithms.pnpo import pnpo


def test_a_token_weighs_the_geometric_mean_of_its_prefix():
    own = table(exact(1, 1, 1, -1), exact(4, 0.25, 1.1, 1.5), sequence=torch.tensor([0, 0, 0, 1]))
    means = [4.0, 1.0, 1.1 ** (1 / 3), 1.5]
    assert pulls(lambda known: pnpo(known, high=9.0), own) == pytest.approx([*means[:3], -1.5])
    assert pulls(pnpo, own) == pytest.approx([0.0, *means[1:3], -1.5])
    assert pulls(lambda known: pnpo(known, low=1.01, high=1.4), own) == pytest.approx([0, 0, means[2], 0])
