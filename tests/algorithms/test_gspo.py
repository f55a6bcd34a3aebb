from math import exp

import pytest
import torch
from tests.algorithms.by_hand import exact, pulls
from tests.configuration.compositions import validated
from tests.token_tables import table

from bapo_lightning.algorithms.gspo import gspo


def test_a_response_is_clipped_by_the_geometric_mean_of_its_ratios():
    ratio = exact(0.3, -0.1, 0.5, 0.1, 0.6).exp()  # means 0.1 and 0.3
    sequence = torch.tensor([0, 0, 1, 1, 2])
    made = table(exact(1, 1, 1, 1, -1), ratio, sequence=sequence, low=exp(-0.2), high=exp(0.2))
    expected = [exp(0.1)] * 2 + [exp(0.2)] * 2 + [-exp(0.6)]
    assert gspo(made).tolist() == pytest.approx(expected)
    assert pulls(gspo, made) == pytest.approx([exp(0.1)] * 2 + [0, 0, -exp(0.6)])


def test_luspo_counts_a_response_by_its_length():
    weighting = validated("algorithm=luspo").algorithm.weighting.make()
    mask = torch.tensor([[1, 1, 1], [1, 0, 0]])
    assert weighting(mask, num_sequences=2).tolist() == [[0.5] * 3, [0.5, 0, 0]]
