import numpy as np
import pytest
import torch
from tests.algorithms.by_hand import exact, pulls
from tests.token_tables import table
from tests.zoo.reference import Array, Columns, Reference, reinforce
from tests.zoo.weights import prefix

from bapo_lightning.algorithms.minpro import minpro


def closed_form(columns: Columns) -> Array:
    """MinPRO (arXiv 2601.22718): w v A, v the token's ratio times the least one before it in the response."""
    before = prefix(columns, columns["ratio"], lambda own: float(own[:-1].min(initial=np.inf)))
    return columns["ratio"] * np.where(columns["position"] == 0, 1.0, before) * reinforce(columns)


# Tokens that are certain, which a row of several stands for, have no gradient.
REFERENCES = {"minpro": Reference(closed_form, rows="the last one's")}


def test_a_token_weighs_its_ratio_times_the_least_before_it():
    own = table(
        exact(1, 1, 1, 1, -1, -1), exact(4, 2, 0.5, 3, 0.1, 5), sequence=torch.tensor([0, 0, 0, 0, 1, 1])
    )
    assert pulls(minpro, own) == pytest.approx([4, 8, 1, 1.5, -0.1, -0.5])


def test_a_row_of_several_tokens_has_the_weight_of_its_last():
    one = table(exact(1, 1, 1, 1, 1), exact(2, 0.5, 0.5, 0.5, 3), sequence=torch.tensor([0] * 5))
    rows = table(exact(1, 1, 1), exact(2, 0.5, 3), sequence=torch.tensor([0] * 3), count=exact(1, 3, 1))
    assert pulls(minpro, rows) == pytest.approx([2.0, 0.25, 1.5])
    assert pulls(minpro, rows) == [pulls(minpro, one)[token] for token in (0, 3, 4)]
