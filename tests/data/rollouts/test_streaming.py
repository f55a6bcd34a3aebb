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
    length.note_pass(SampledPass([], {}, 8 * step, steps=8))
    assert length.next(100.0) == STEPS  # how far apart visits are is not known yet
    assert length.next(100.0 + between) == steps
    length.visit(100.0 + between)
    assert length.next(100.0 + between) == steps
