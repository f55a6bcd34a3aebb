"""Calls of a stream."""

import pytest

from bapo_lightning.data.rollouts.async_collector import MOST_STEPS, NumSteps
from bapo_lightning.data.rollouts.running_group import STEPS, SampledPass


@pytest.mark.parametrize(("between", "step", "steps"), [
    (32.0, 0.1, 20), (0.5, 0.1, STEPS), (1e4, 0.1, MOST_STEPS), (32.0, 0.0, STEPS),
])  # fmt: skip
def test_a_call_lasts_a_sixteenth_of_the_time_between_two_visits(between, step, steps):
    length = NumSteps()
    length.visit(100.0)
    length.made(SampledPass([], {}, 8 * step, steps=8))
    assert length.next(100.0) == STEPS  # how far apart visits are is not known yet
    assert length.next(100.0 + between) == steps
    length.visit(100.0 + between)
    assert length.next(100.0 + between) == steps


@pytest.mark.parametrize(("apart", "waited", "steps"), [
    (0.0, 0.0, 20), (0.5, 0.0, 56), (0.5, 0.4, 25), (5.0, 5.0, 20), (5.0, 0.0, MOST_STEPS),
])  # fmt: skip
def test_a_call_is_longer_the_more_work_is_between_two_calls(apart, waited, steps):
    length = NumSteps()
    length.visit(100.0)
    length.made(SampledPass([], {}, 8 * 0.1, steps=8), 100.0)
    length.begin(100.0 + apart, waited)
    length.visit(132.0)  # sqrt(2 * 0.5 * 32) / 0.1 = 56 steps; a sixteenth of 32 seconds are 20
    assert length.next(132.0) == steps
