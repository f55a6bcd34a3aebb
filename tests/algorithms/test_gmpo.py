from math import exp

import pytest
import torch
from tests.algorithms.by_hand import exact, pulls
from tests.token_tables import table

from bapo_lightning.algorithms.gmpo import gmpo

BOUNDS = {"low": exp(-0.4), "high": exp(0.4)}


def test_each_token_is_clipped_before_the_mean():
    ratio = exact(0.6, 0.2, -0.6, 0.6).exp()
    made = table(exact(1, 1, -1, -1), ratio, sequence=torch.tensor([0, 0, 1, 1]), **BOUNDS)
    expected = [exp(0.3)] * 2 + [-exp(0.1)] * 2  # means of (0.4, 0.2) and of (-0.4, 0.6)
    assert gmpo(made).tolist() == pytest.approx(expected)
    assert pulls(gmpo, made) == pytest.approx([0, exp(0.3), 0, -exp(0.1)])


def test_it_is_the_ratio_where_a_response_is_one_token_and_nothing_where_it_has_no_advantage():
    assert gmpo(table(exact(2, 0), exact(1.1, 9), **BOUNDS)).tolist() == pytest.approx([2.2, 0])
