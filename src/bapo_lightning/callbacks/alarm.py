"""Warns, or ends the run, when a metric leaves the range in which training is healthy."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from statistics import median
from typing import Annotated, Any, ClassVar, Literal, get_args

import lightning as L
from annotated_types import Gt, MinLen

from bapo_lightning.callbacks.alarm_advice import advice
from bapo_lightning.callbacks.monitors.monitor import Metrics, Monitor, Update
from bapo_lightning.callbacks.order import Order
from bapo_lightning.errors import TrainingError
from bapo_lightning.values import Advice, Count

Action = Literal["warn", "stop"]
Off = Literal["off", False]  # YAML reads a bare `off` as false
OFF = get_args(Off)
UNSEEN_UPDATES = 100  # a metric that is absent from all of them is probably misspelt


@dataclass(frozen=True)
class Spike:
    """Threshold at `factor` times the median of the last `window` positive values, once half of them have
    been seen.
    """

    factor: Annotated[float, Gt(1)]
    window: Count = 50


class Alarm(Monitor):
    """Compares one metric with its thresholds in each update that has it. Emits `alarms/<name>`, the number
    of updates in which the alarm was on.

    It is on from the `patience`-th measured value in a row beyond a threshold until the next value within.
    NaN is beyond every threshold. warn: prints one line when it goes on and one when it goes off. stop: ends
    training after the current update like a signal would, with everything written and saved, and then
        raises `TrainingError`, so that the run counts as failed.

    Comes after all monitors whose metrics it may watch.
    """

    order: ClassVar[Order] = Order.ALARM

    def __init__(
        self,
        name: str,
        metric: Annotated[str, MinLen(1)],
        below: float | None = None,
        above: float | None = None,
        spike: Annotated[Spike | None, Advice("must be e.g. {factor: 50, window: 50}, or null")] = None,
        patience: Count = 1,
        action: Action | Off = "warn",
    ) -> None:
        """
        Args:
            name: name of the alarm: `callbacks.alarms.<name>` in the configuration.
            metric: name in metrics.jsonl.
            below: smaller values are beyond the threshold; None: no threshold.
            above: larger values are beyond the threshold; None: no threshold.
            spike: values far above the usual are beyond the threshold; None: no threshold.
            patience: number of measured updates in a row that must be beyond a threshold.
            action: what the alarm does when it is on; with `off` it neither compares nor emits anything.

        Raises:
            ValueError: an unknown action.
        """
        if action not in (*get_args(Action), *OFF):
            raise ValueError(f"action must be one of {', '.join(get_args(Action))}, off, got {action!r}")
        self.name, self.metric = name, metric
        self.below, self.above, self.spike = below, above, spike
        self.patience, self.action = patience, action
        self._usual: deque[float] = deque(maxlen=spike.window if spike else 0)
        self._num_measured = 0
        self._num_beyond_in_a_row = 0
        self._num_on = 0
        self._is_on = False
        self._reason: str | None = None

    @staticmethod
    def problems(options: Mapping[str, Any]) -> Iterator[str]:
        """Yields what is wrong with the thresholds together: an alarm must be able to go on and off."""
        below, above, spike = (options.get(name) for name in ("below", "above", "spike"))
        if options.get("action") in OFF:
            return
        if below is None and above is None and spike is None:
            yield "below is null like above and spike: the alarm has no threshold; write one, or action=off"
        elif below is not None and above is not None and below >= above:
            yield (
                f"below={below} is not below above={above}, and every value is beyond; write a smaller "
                "below, or one null"
            )
        if options["metric"] == "mismatch/abs_logp_diff_mean" and above is not None and above <= 0:
            yield f"above={above}: no two computations agree to the last bit; write e.g. 0.1"

    @property
    def state_key(self) -> str:
        """Key of the state in Lightning's checkpoint, since a run may have several alarms."""
        return f"Alarm.{self.name}"

    def measure(self, update: Update) -> Metrics:
        """Returns the number of updates in which the alarm was on, this one included."""
        if self.action in OFF:
            return {}
        if self.metric in update.metrics:
            self._compare(float(update.metrics[self.metric]), update)
        elif self._num_measured == 0 and update.index + 1 == UNSEEN_UPDATES:
            similar = get_close_matches(self.metric, update.metrics, 1)
            hint = f"did you mean {similar[0]}?" if similar else "metrics.jsonl has the names"
            print(
                f"warning: no update had callbacks.alarms.{self.name}.metric={self.metric} so far; {hint}",
                flush=True,
            )
        return {f"alarms/{self.name}": self._num_on}

    def teardown(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        """Fails the run, which is saved and whose engine is closed.

        Raises:
            TrainingError: the alarm stopped the run.
        """
        if self._reason is not None:
            reason, self._reason = self._reason, None
            raise TrainingError(
                f"{reason}. The run was stopped after that update "
                f"(callbacks.alarms.{self.name}.action=stop); a checkpoint of it is saved in checkpoints/"
            )

    def state_dict(self) -> dict[str, Any]:
        """Returns the counts, and the values that define what is usual."""
        return {
            "num_measured": self._num_measured,
            "num_beyond_in_a_row": self._num_beyond_in_a_row,
            "num_on": self._num_on,
            "is_on": self._is_on,
            "usual": list(self._usual),
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restores the counts."""
        self._num_measured = state_dict["num_measured"]
        self._num_beyond_in_a_row = state_dict["num_beyond_in_a_row"]
        self._num_on, self._is_on = state_dict["num_on"], state_dict["is_on"]
        self._usual.clear()
        self._usual.extend(state_dict["usual"])

    def _compare(self, value: float, update: Update) -> None:
        """Counts one measured value, and acts if the alarm is on."""
        side, excess = self._beyond(value)
        self._num_measured += 1
        self._num_beyond_in_a_row = self._num_beyond_in_a_row + 1 if side else 0
        was_on, self._is_on = self._is_on, self._num_beyond_in_a_row >= self.patience
        self._num_on += self._is_on
        if 0 < value < math.inf:  # an update without a gradient says nothing about its usual size
            self._usual.append(value)
        if self._is_on:
            in_a_row = (
                f" in {self._num_beyond_in_a_row} measured updates in a row" if self.patience > 1 else ""
            )
            text = (
                f"alarm {self.name}: {self.metric} is {value:.3g}, {excess}{in_a_row} (policy version "
                f"{update.version}). "
            )
            self._act(text + advice(self.metric, side), update, began=not was_on)
        elif was_on:
            print(
                f"alarm {self.name} is over: {self.metric} is {value:.3g} (policy version {update.version})",
                flush=True,
            )

    def _act(self, text: str, update: Update, began: bool) -> None:
        if self.action == "stop":
            self._reason = text
            update.module.trainer.should_stop = True
            # The text becomes the run's error; until that is printed, this line explains why training ends.
            print(f"alarm {self.name}: stopping after this update", flush=True)
        elif began:
            print(f"warning: {text}", flush=True)

    def _beyond(self, value: float) -> tuple[str, str]:
        """Returns the threshold that the value is beyond ("" for none), and a phrase that says so."""
        key = f"callbacks.alarms.{self.name}"
        if math.isnan(value):
            return "nan", f"which counts as beyond every threshold of {key}"
        if self.below is not None and value < self.below:
            return "below", f"below {key}.below={self.below:g}"
        if self.above is not None and value > self.above:
            return "above", f"above {key}.above={self.above:g}"
        if self.spike is not None and self._usual and 2 * len(self._usual) >= self.spike.window:
            usual = median(self._usual)
            if value > self.spike.factor * usual:
                return (
                    "spike",
                    f"more than {key}.spike.factor={self.spike.factor:g} times {usual:.3g}, the median of "
                    "the updates before",
                )
        return "", ""


def build_alarms(nodes: Mapping[str, Mapping[str, Any]]) -> list[Alarm]:
    """Builds the alarms that are not off from their configuration by name."""
    return [
        Alarm(name, **{**node, "spike": Spike(**node["spike"]) if node.get("spike") else None})
        for name, node in nodes.items()
        if node.get("action") not in OFF
    ]
