"""PIPO: what the batch before is worth, by hand."""

import pytest
from tests.configuration.compositions import found
from tests.data.batches.past_groups import check_state, made

from bapo_lightning.algorithms.pipo import ProgressReplay


def test_progress_goes_forwards_after_a_rise_and_slowly_backwards_after_a_fall():
    rule = ProgressReplay(window=2, damping=0.1)
    for mean in (0.2, 0.4):
        assert not rule.is_ready
        rule.valued([], [made("a", [mean])])
    assert rule.is_ready
    past = made("b", [1.0, 0.0], [1.0, -1.0])
    (again,) = rule.valued([past], [made("c", [0.5])])  # (0.5 - 0.3) / 0.1
    assert again.advantages == pytest.approx((2.0, -2.0)) and again.weight == 1.0
    (again,) = rule.valued([past], [made("c", [0.35])])  # 0.1 (0.35 - 0.45) / 0.05
    assert again.advantages == pytest.approx((-0.2, 0.2))


def test_progress_is_limited_and_equal_rewards_are_no_division_by_zero():
    rule = ProgressReplay(window=2, by_magnitude=True, limit=3.0)
    for _ in range(2):
        rule.valued([], [made("a", [0.5])])
    past = made("b", [1.0, 0.0, 0.0], [2.0, -1.0, -1.0])
    (again,) = rule.valued([past], [made("c", [0.7])])  # the history has no spread: 0.2 / 1
    assert again.advantages == pytest.approx((0.3, -0.15, -0.15))  # 0.2 (2, -1, -1) / (4 / 3)
    (again,) = rule.valued([past], [made("c", [9.0])])
    assert again.advantages == (3.0, -3.0, -3.0)
    assert rule.kept(past) is past and rule.kept(made("d", [1.0, 1.0], [0.0, 0.0])) is None


def test_it_goes_on_from_its_state():
    check_state(ProgressReplay)


def test_it_needs_a_regime_that_keeps_groups_and_a_damping_that_is_not_negative():
    (text,) = found("algorithm=pipo", "regime=async")
    assert "regime=async keeps none" in text
    (text,) = found("algorithm=pipo", "regime=pipo", "algorithm.stages.replay.damping=-1")
    assert "damping=-1 must be" in text
