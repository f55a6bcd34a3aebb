"""Which callbacks a run has."""

import pytest
from tests.configuration.compositions import validated

from bapo_lightning.callbacks.monitors.gradient import GradientMonitor
from bapo_lightning.callbacks.monitors.turns import TurnMonitor
from bapo_lightning.runs.callbacks import build_monitors


@pytest.mark.parametrize(("options", "expected"), [
    (["experiment=additions"], set()),
    (["experiment=additions", "callbacks.gradient.cosine=true"], {GradientMonitor}),
    (["experiment=sums"], {TurnMonitor}),
])  # fmt: skip
def test_monitors_of_turns_and_of_gradients_are_made_where_they_have_something_to_measure(options, expected):
    made = {type(callback) for callback in build_monitors(validated(*options), [])}
    assert made & {TurnMonitor, GradientMonitor} == expected
