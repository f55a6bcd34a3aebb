import pytest

from bapo_lightning.rewards.shaping import OverlongPenalty


def test_the_overlong_penalty_is_a_ramp_before_the_limit():
    penalty = OverlongPenalty(limit=48, buffer=12)
    assert [penalty(length) for length in (1, 36, 39, 42, 48)] == [0.0, 0.0, -0.25, -0.5, -1.0]
    assert OverlongPenalty(limit=10, buffer=10, factor=2.0)(5) == -1.0


def test_a_buffer_beyond_the_limit_is_refused():
    with pytest.raises(ValueError, match=r"must be in 1..limit \(10\), got 11"):
        OverlongPenalty(limit=10, buffer=11)
