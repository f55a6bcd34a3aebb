import numpy as np
import pytest
import torch
from tests.algorithms.by_hand import exact, pulls
from tests.token_tables import table
from tests.zoo.reference import Array, Columns, Reference, reinforce
from tests.zoo.weights import prefix

from bapo_lightning.algorithms.pnpo import pnpo


def closed_form(columns: Columns) -> Array:
    """PNPO (arXiv 2608.01418): w v A, v the geometric mean of the response's ratios up to the token, where
    0.5 <= v <= 2.
    """
    found = np.exp(prefix(columns, columns["log_ratio"], np.mean))
    return found * reinforce(columns) * (found >= 0.5) * (found <= 2.0)


# Tokens that are certain, which a row of several stands for, have no gradient.
REFERENCES = {"pnpo": Reference(closed_form, rows="the last one's")}
HARMLESS = {
    "a limit of PNPO's weight that is never reached": ((1e30, 10**9, 2**53 + 1), "pnpo.high"),
    "no limit below of PNPO's weight": ((0,), "pnpo.low"),
}


def test_a_token_weighs_the_geometric_mean_of_its_prefix():
    own = table(exact(1, 1, 1, -1), exact(4, 0.25, 1.1, 1.5), sequence=torch.tensor([0, 0, 0, 1]))
    means = [4.0, 1.0, 1.1 ** (1 / 3), 1.5]
    assert pulls(lambda known: pnpo(known, high=9.0), own) == pytest.approx([*means[:3], -1.5])
    assert pulls(pnpo, own) == pytest.approx([0.0, *means[1:3], -1.5])
    assert pulls(lambda known: pnpo(known, low=1.01, high=1.4), own) == pytest.approx([0, 0, means[2], 0])
