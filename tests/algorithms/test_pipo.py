import pytest
from tests.algorithms.by_hand import check_rule_memory, past_group
from tests.algorithms.resuming import check_resumed_run
from tests.configuration.compositions import found

from bapo_lightning.algorithms.pipo import ProgressReplay


def test_progress_goes_forwards_after_a_rise_and_slowly_backwards_after_a_fall():
    rule = ProgressReplay(window=2, damping=0.1)
    for mean in (0.2, 0.4):
        assert not rule.is_ready
        rule.valued([], [past_group("a", [mean])])
    assert rule.is_ready
    past = past_group("b", [1.0, 0.0], [1.0, -1.0])
    (again,) = rule.valued([past], [past_group("c", [0.5])])  # (0.5 - 0.3) / 0.1
    assert again.advantages == pytest.approx((2.0, -2.0)) and again.weight == 1.0
    (again,) = rule.valued([past], [past_group("c", [0.35])])  # 0.1 (0.35 - 0.45) / 0.05
    assert again.advantages == pytest.approx((-0.2, 0.2))


def test_progress_is_limited_and_equal_rewards_are_no_division_by_zero():
    rule = ProgressReplay(window=2, by_magnitude=True, limit=3.0)
    for _ in range(2):
        rule.valued([], [past_group("a", [0.5])])
    past = past_group("b", [1.0, 0.0, 0.0], [2.0, -1.0, -1.0])
    (again,) = rule.valued([past], [past_group("c", [0.7])])  # the history has no spread: 0.2 / 1
    assert again.advantages == pytest.approx((0.3, -0.15, -0.15))  # 0.2 (2, -1, -1) / (4 / 3)
    (again,) = rule.valued([past], [past_group("c", [9.0])])
    assert again.advantages == (3.0, -3.0, -3.0)
    assert rule.kept(past) is past and rule.kept(past_group("d", [1.0, 1.0], [0.0, 0.0])) is None


def test_a_history_whose_means_differ_by_rounding_has_no_spread():
    rule = ProgressReplay(window=2)
    for mean in (0.3, 0.1 + 0.2):
        rule.valued([], [past_group("a", [mean])])
    past = past_group("b", [1.0, 0.0], [1.0, -1.0])
    (again,) = rule.valued([past], [past_group("c", [0.31])])
    assert again.advantages == pytest.approx((0.01, -0.01))


def test_the_rule_goes_on_from_its_state():
    check_rule_memory(lambda: ProgressReplay(window=3))


def test_past_groups_must_be_kept():
    (text,) = found("algorithm=pipo", "regime=async")
    assert "regime=async keeps none; write regime=reuse" in text


@pytest.mark.slow
def test_a_run_goes_on_as_if_it_had_never_stopped(tmp_path):
    own = "algorithm=pipo", "regime=pipo", "algorithm.stages.replay.window=2"
    check_resumed_run(tmp_path, '"origin": "replayed"', *own)
