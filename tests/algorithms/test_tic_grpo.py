import numpy as np
import pytest
import torch
from tests.algorithms.by_hand import exact, pulls
from tests.token_tables import table
from tests.zoo.reference import Array, Columns, Reference, reinforce
from tests.zoo.references_tokens import over_responses

from bapo_lightning.algorithms.tic_grpo import tic_grpo


def closed_form(columns: Columns) -> Array:
    """TIC-GRPO (arXiv 2508.02833): w L s A, or nothing above 1.28, s the product of a response's L ratios."""
    ratio = over_responses(columns, lambda own: float(np.prod(np.exp(own))))
    return np.where(ratio > 1.28, 0.0, ratio) * at_one(columns)


def at_one(columns: Columns) -> Array:
    """weight * L * advantage"""
    return over_responses(columns, len) * reinforce(columns)


REFERENCES = {"tic_grpo": Reference(closed_form, at_one)}
HARMLESS = {"a cap of a response's ratio that is never reached": ((1e30, 10**9, 2**53 + 1), "tic_grpo.high")}


def test_a_response_has_the_product_of_its_ratios_up_to_a_cap_from_above_alone():
    made = table(exact(1, 1, -1, -1), exact(2, 0.5, 0.1, 3), sequence=torch.tensor([0, 0, 1, 2]))
    assert tic_grpo(made).tolist() == pytest.approx([1.0, 1.0, -0.1, -1.28])
    assert pulls(tic_grpo, made) == pytest.approx([2.0, 2.0, -0.1, 0.0])


def test_a_response_that_became_far_likelier_has_no_gradient():
    made = table(exact(1, 1), exact(400, 400).exp(), sequence=0)
    assert pulls(tic_grpo, made) == [0.0, 0.0]
