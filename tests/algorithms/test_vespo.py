from math import exp

import pytest
import torch
from tests.algorithms.by_hand import exact, pulls
from tests.token_tables import table

from bapo_lightning.algorithms.vespo import vespo

ADVANTAGES, SEQUENCE = exact(1, 1, -1, -1), torch.tensor([0, 0, 1, 1])


def test_a_response_is_weighed_by_the_product_of_its_ratios():
    right, wrong = 2**2 * exp(-3), 2**3 * exp(-2)
    found = pulls(vespo, table(ADVANTAGES, 2**0.5, sequence=SEQUENCE))
    assert found == pytest.approx([right, right, -wrong, -wrong])


@pytest.mark.parametrize("step", [20.0, -20.0])
def test_far_out_there_is_no_gradient(step):
    made = table(ADVANTAGES, exact(*[step] * 4).exp(), sequence=SEQUENCE)
    assert pulls(vespo, made) == pytest.approx([0] * 4, abs=1e-12)
