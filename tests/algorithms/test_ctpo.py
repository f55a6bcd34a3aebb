from math import exp

import numpy as np
import pytest
import torch
from tests.algorithms.by_hand import exact, pulls
from tests.token_tables import table
from tests.zoo.reference import Array, Columns, Reference
from tests.zoo.references_tokens import clip
from tests.zoo.weights import prefix

from bapo_lightning.algorithms.ctpo import ctpo


def closed_form(columns: Columns) -> Array:
    """CTPO (arXiv 2605.07331): PPO's of s, the product of the response's ratios up to token t, within
    exp(-0.025 sqrt(t)) and exp(0.05 sqrt(t)), the upper one for A < 0 as well.
    """
    root = np.sqrt(columns["position"] + 1)
    s, high = prefix(columns, columns["ratio"], np.prod), np.exp(0.05 * root)
    bounded = {**columns, "ratio": s, "low": np.exp(-0.025 * root), "high": high}
    return np.where((columns["advantage"] < 0) & (s > high), 0.0, clip(bounded))


# Tokens that are certain, which a row of several stands for, have no gradient.
REFERENCES = {"ctpo": Reference(closed_form, rows="the last one's")}
HARMLESS = {"CTPO clips nothing": ((1e30, 10**9, 2**53 + 1), "ctpo.high ctpo.low ctpo.dual_clip")}


def test_the_bounds_of_the_product_widen_with_the_root_of_the_place():
    steps = exact(0.04, 0.02, 0.02, 0.03, -0.05, 0.03)  # sums 0.04, 0.06, 0.08, 0.11 of 0.05 sqrt(t), -0.05
    own = table(exact(1, 1, 1, 1, -1, -1), steps.exp(), sequence=torch.tensor([0, 0, 0, 0, 1, 1]))
    assert pulls(ctpo, own) == pytest.approx([exp(0.04), exp(0.06), exp(0.08), 0, 0, -exp(-0.02)])
