"""Calls of a stream."""

import pytest

from bapo_lightning.data.rollouts.running_group import STEPS, SampledPass
from bapo_lightning.data.rollouts.streaming import MOST_STEPS, CallLength


@pytest.mark.parametrize(("between", "step", "steps"), [
    (32.0, 0.1, 20), (0.5, 0.1, STEPS), (1e4, 0.1, MOST_STEPS), (32.0, 0.0, STEPS),
])  # fmt: skip
def test_a_call_lasts_a_sixteenth_of_the_time_between_two_visits(between, step, steps):
    length = CallLength()
    length.visit(100.0)
    length.called(SampledPass([], {}, 8 * step, steps=8))
    assert length.steps(100.0) == STEPS  # how far apart visits are is not known yet
    assert length.steps(100.0 + between) == steps
    length.visit(100.0 + between)
    assert length.steps(100.0 + between) == steps
