import pytest
import torch
from tests.algorithms.by_hand import exact, pulls, refusal
from tests.token_tables import table

from bapo_lightning.algorithms.aspo import aspo

BOUNDS = {"low": 0.8, "high": 1.2}


def test_it_turns_the_weights_of_positive_tokens_round():
    ratios = exact(0.01, 0.5, 1.0, 1.1, 2.0, 100.0)
    right, wrong = (table(exact(*[advantage] * 6), ratios, **BOUNDS) for advantage in (1, -1))
    assert pulls(aspo, right) == pytest.approx([3.0, 2.0, 1.0, 1 / 1.1, 0.0, 0.0])
    assert pulls(aspo, wrong) == pytest.approx([0.0, 0.0, -1.0, -1.1, -2.0, -3.0])


def test_it_widens_the_bounds_of_the_fifth_of_a_response_with_the_highest_entropies():
    made = table(
        exact(1, 1, 1, 1, 1, -1), exact(1.3, 1.3, 1.3, 1.3, 1.3, 0.7),
        entropy=exact(0.5, 0.1, 0.2, 0.9, 0.3, 0.4),
        sequence=torch.tensor([0, 0, 0, 0, 0, 1]), **BOUNDS,  # the last response has one token alone
    )  # fmt: skip
    found = pulls(lambda tokens: aspo(tokens, widening=2.0), made)
    assert found == pytest.approx([0.0, 0.0, 0.0, 1 / 1.3, 0.0, 0.0])


def test_a_widening_that_narrows_is_refused():
    assert refusal("aspo", "widening=0.5").startswith("widening=0.5 must be at least 1")
