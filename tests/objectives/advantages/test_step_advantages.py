"""Advantages of steps, by hand."""

import pytest

from bapo_lightning.algorithms.direct_advantage.steps import step_advantages


def test_a_step_is_worth_what_the_value_gains_and_the_last_one_ends_in_the_outcome() -> None:
    assert step_advantages([0.5, 0.75, 0.25], 1.0) == [0.25, -0.5, 0.75]
    assert step_advantages([0.5, 0.75, 0.25], 0.0) == [0.25, -0.5, -0.25]


def test_a_lone_step_gets_the_outcome_less_the_value_of_the_prompt() -> None:
    assert step_advantages([0.25], 1.0) == [0.75]


def test_they_add_up_to_the_outcome_less_the_value_of_the_prompt() -> None:
    assert sum(step_advantages([0.3, 0.9, 0.1, 0.6], 1.0)) == pytest.approx(0.7)
