"""Detectors of values of one metric that leave the range in which training is healthy.

    value of an update, state -> Detector.take -> side of the range, state

Alarms take a value after each update of a run, `tools/doctor` all values of a run folder or a log.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from statistics import median
from typing import Annotated, Literal

from annotated_types import Gt

from bapo_lightning.system.values import Count

Side = Literal["", "nan", "below", "above", "spike"]  # of the thresholds; "": within them


@dataclass(frozen=True)
class Spike:
    """Threshold at `factor` times the median of the last `window` positive values, once half are there."""

    factor: Annotated[float, Gt(1)]
    window: Count = 50


@dataclass
class State:
    """State that a detector carries from one value to the next."""

    num_measured: int = 0
    num_beyond_in_a_row: int = 0
    num_on: int = 0
    is_on: bool = False
    usual: list[float] = field(default_factory=list)  # the last `spike.window` positive values

    @property
    def median(self) -> float:
        """Usual value; NaN before the first one."""
        return median(self.usual) if self.usual else math.nan


@dataclass(frozen=True)
class Detector:
    """Thresholds, and the number of values in a row, `patience`, that must be beyond them."""

    below: float | None = None
    above: float | None = None
    spike: Spike | None = None
    patience: int = 1

    def side(self, value: float, state: State) -> Side:
        """The threshold that a value is beyond; NaN is beyond every threshold."""
        if math.isnan(value):
            return "nan"
        if self.below is not None and value < self.below:
            return "below"
        if self.above is not None and value > self.above:
            return "above"
        is_known = self.spike is not None and state.usual and 2 * len(state.usual) >= self.spike.window
        return "spike" if is_known and value > self.spike.factor * state.median else ""  # type: ignore[union-attr]

    def take(self, value: float, state: State) -> Side:
        """Returns the side of a value, and enters it into the state."""
        side = self.side(value, state)
        state.num_measured += 1
        state.num_beyond_in_a_row = state.num_beyond_in_a_row + 1 if side else 0
        state.is_on = state.num_beyond_in_a_row >= self.patience
        state.num_on += state.is_on
        if self.spike and 0 < value < math.inf:  # no gradient in an update says nothing about its usual size
            state.usual = [*state.usual, value][-self.spike.window :]
        return side
