from math import exp

import pytest
from tests.algorithms.by_hand import exact
from tests.token_tables import table

from bapo_lightning.algorithms.kl_cov import KLCov


def test_the_tokens_of_highest_covariance_are_picked():
    # Covariances 3.75, 0.75, 2.25 and 1.25, without the last row, which stands for no token.
    behaviour_logp, count = exact(-1.0, -2.0, -4.0, -3.0, -99.0), exact(1, 1, 1, 1, 0)
    made = table(exact(2, 1, -2, -3, 9), behaviour_logp=behaviour_logp, count=count)
    assert KLCov().prepare(made)["picked"].tolist() == [1, 0, 0, 0, 0]
    assert KLCov(share=0.6).prepare(made)["picked"].tolist() == [1, 0, 1, 0, 0]


def test_the_picked_ones_pay_for_moving():
    made = table(exact(2, 2, -1), exact(0.1, -0.1, 0.1).exp(), prepared={"picked": exact(1, 1, 0)})
    expected = [2 * exp(0.1) - 0.05, 2 * exp(-0.1) - 0.05, -exp(0.1)]
    assert KLCov(coefficient=0.5)(made).tolist() == pytest.approx(expected)
