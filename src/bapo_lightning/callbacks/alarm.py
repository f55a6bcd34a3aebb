"""Warns, or ends the run, when a metric leaves the range in which training is healthy."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Annotated, Any, ClassVar, Literal, get_args

from annotated_types import MinLen
from lightning import LightningModule, Trainer

from bapo_lightning.callbacks.monitors.monitor import Metrics, Monitor, MonitoredUpdate, in_numbers
from bapo_lightning.callbacks.order import Order
from bapo_lightning.data.batches.batch import TrainBatch
from bapo_lightning.data.rollouts.observer import unread
from bapo_lightning.report.detectors import Detector, Spike, State
from bapo_lightning.report.metrics import CATALOGUE, is_listed
from bapo_lightning.system.errors import TrainingError, nearest
from bapo_lightning.system.printable import say
from bapo_lightning.system.values import Advice, Count

Action = Literal["warn", "stop"]
Off = Literal["off", False]  # YAML reads a bare `off` as false
OFF = get_args(Off)
UNSEEN_UPDATES = 100  # a metric that is absent from so many updates is probably misspelt
DOCTOR = "`make doctor RUN=FOLDER` distinguishes the causes"
# Likely causes and remedies, by metric and by the threshold that it crossed; without a final full stop.
ADVICE = {
    ("policy/entropy", "below"): (
        "Likely causes: tokens with a positive advantage have too small a share of the gradient, the data "
        "are too stale, or the steps are too large; on stale data a clipped loss loses entropy by itself. "
        "Raise algorithm.positive_share_target (if bounds are searched), lower the staleness "
        "(regime.epochs, regime.minibatches), or lower optimizer.optimizer.lr"
    ),
    ("policy/entropy", "above"): (
        "Likely causes: an upper bound that lets rare positive tokens grow without end (on a small model "
        "3.0 can be one), a share of positives that is forced too high, or too large steps. Lower "
        "algorithm.bounds.high.end (algorithm.bounds.high if bounds are fixed), "
        "algorithm.positive_share_target, or optimizer.optimizer.lr"
    ),
    ("policy/approx_kl", "above"): (
        "The policy has moved far from the one that sampled its data: data are too old, steps too large, or "
        f"the engine is wrong. {DOCTOR}"
    ),
    ("train/clip_fraction", "below"): (
        "Nothing was clipped: bounds change nothing, and the objective is REINFORCE with importance weights "
        "here. That is expected on fresh data; on stale data the steps are too small for a ratio to "
        "reach its bound. Raise the staleness (regime.epochs, regime.minibatches) or "
        "optimizer.optimizer.lr, or narrow algorithm.bounds"
    ),
    ("train/grad_norm", "spike"): (
        "A lone spike, of tokens of low probability, does little harm: optimizer.max_grad_norm scales the "
        "step down. If spikes come often, lower optimizer.optimizer.lr or the staleness"
    ),
    ("train/grad_norm", "below"): (
        "No token had an advantage, or all tokens were clipped. If advantages are relative to a group, "
        "all answers to each problem of these updates had the same score: choose problems of medium "
        "difficulty, or write a larger scale.group_size, or algorithm=dapo, which samples until groups differ"
    ),
    ("mismatch/abs_logp_diff_mean", "above"): (
        "Rollout engine and trainer differ by so many nats per token on a fresh batch; up to 0.03 is usual "
        f"for bfloat16. {DOCTOR}: temperature, stale weights or prefix cache, shifted log-probs. For a "
        "difference that must stay, write correction=truncated_is or correction=masked_is"
    ),
    ("ratio/effective_sample_size", "below"): (
        f"Few tokens decide the gradient: data are too old, steps too large, or the engine is wrong. {DOCTOR}"
    ),
    ("mismatch/lora_update_kept", "below"): (
        "The engine got merged weights in 16 bits, and rounding lost so much of the adapters' update: "
        "samples come from an older policy than their version says. Leave rollout.engine.options.lora_rank "
        "to model.lora.rank, with which vLLM takes adapters as they are, or write an engine's dtype=float32"
    ),
    ("staleness/bound_reached", "below"): (
        "No token so far was as old as regime.max_age allows: the run is fresher than its bound says, and a "
        "larger bound would change nothing. Take staleness/age_mean for its staleness; data of a given age "
        "come from regime=replay (regime.epochs, regime.minibatches), or from a recorded schedule "
        "(regime.schedule). With regime.batches_in_flight this is as intended"
    ),
    ("rollout/trained_length_ratio", "below"): (
        "Trained responses are that much shorter than sampled ones, over the whole run: groups with long "
        "ones became too old (rollout/evicted), or their scores were equal (rollout/dropped). Write a "
        "larger regime.max_age, and regime.batches_in_flight=3, which keeps the data young"
    ),
}
NAN = (
    "Likely causes: weights or log-probs that are not finite, or a metric that is undefined in this update "
    "(a share of nothing), which is a bad one to watch. Look at train/skipped_updates and rollouts.jsonl; "
    "lower optimizer.optimizer.lr"
)
NO_GRADIENT = "train/grad_norm", "below"
COUNTED = "num_samples", "cut", "unparsable"  # of rollout/*
OTHER = "Look in metrics.jsonl and rollouts.jsonl for what else changed at that update"


@dataclass
class AlarmState(State):
    """Part of an alarm that a checkpoint holds."""

    num_times: int = 0  # how often it was triggered
    told: list[str] = field(default_factory=list)  # sides of the thresholds for which a warning was printed
    is_told: bool = False  # whether the warning about the current alarm was printed
    answers: list[float] = field(default_factory=list)  # `COUNTED` of the newest batch


@dataclass(eq=False)
class Alarm(Monitor):
    """Compares one metric with its thresholds in each update that has it. Emits `alarms/<name>`, the number
    of updates in which the alarm was on.

    It is on from the `patience`-th measured value in a row beyond a threshold until the next value within it;
    NaN is beyond every threshold. warn: prints one line when a threshold first triggers it, one when
    that is over, and at the end how often it was triggered. stop: ends training after the current update as a
    signal would, with everything saved, and then raises `TrainingError`. An unknown action is a ValueError.
    """

    order: ClassVar[Order] = Order.ALARM
    needs = frozenset[str]()
    name: str  # `callbacks.alarms.<name>` in the configuration
    metric: Annotated[str, MinLen(1)]  # name in metrics.jsonl
    below: float | None = None  # smaller values are beyond the threshold; None: no threshold
    above: float | None = None  # larger values are beyond the threshold; None: no threshold
    # Values far above the usual are beyond the threshold; None: no threshold.
    spike: Annotated[Spike | None, Advice("must be e.g. {factor: 50, window: 50}, or null")] = None
    patience: Count = 1  # number of measured updates in a row that must be beyond a threshold
    action: Action | Off = "warn"  # with `off` the alarm neither compares nor emits anything
    _state: AlarmState = field(init=False, default_factory=AlarmState)
    _seen: set[str] = field(init=False, default_factory=set)  # metrics of the updates without it
    _is_missed: bool = field(init=False, default=False)  # whether this was reported during training
    _reason: str | None = field(init=False, default=None)  # why the run was stopped

    def __post_init__(self) -> None:
        if self.action not in (*get_args(Action), *OFF):
            raise ValueError(f"action must be one of {', '.join(get_args(Action))}, off, got {self.action!r}")
        self._is_listed = is_listed(self.metric)

    @staticmethod
    def problems(options: Mapping[str, Any]) -> Iterator[str]:
        """Yields why the alarm could never be raised, or never end."""
        below, above, spike = (options.get(name) for name in ("below", "above", "spike"))
        if options.get("action") in OFF:
            return
        if below is None and above is None and spike is None:
            yield "below is null like above and spike: the alarm has no threshold; write one, or action=off"
        elif below is not None and above is not None and below >= above:
            yield (
                f"below={below} is not below above={above}, so every value is beyond one; write a smaller "
                "below, or one null"
            )
        if options["metric"] == "mismatch/abs_logp_diff_mean" and above is not None and above <= 0:
            yield f"above={above}: no two computations agree to the last bit; write e.g. 0.1"

    @property
    def state_key(self) -> str:
        """Key in Lightning's checkpoint: a run may have several alarms."""
        return f"Alarm.{self.name}"

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: TrainBatch, batch_idx: int
    ) -> None:
        """Fetches what the monitors measured, once for all alarms, and compares."""
        outputs["metrics"] = in_numbers(outputs["metrics"])
        super().on_train_batch_end(trainer, pl_module, outputs, batch, batch_idx)

    def measure(self, update: MonitoredUpdate) -> Metrics:
        """Number of updates in which the alarm was on, this one included."""
        if update.metrics.get("rollout/num_samples"):  # zero between the first updates of two batches
            self._state.answers = [float(update.metrics[f"rollout/{name}"]) for name in COUNTED]
        if self.action in OFF:
            return {}
        if self.metric in update.metrics:
            self._compare(float(update.metrics[self.metric]), update)
        elif self._state.num_measured == 0:
            self._seen |= update.metrics.keys()
            is_late = update.index + 1 >= UNSEEN_UPDATES
            if not self._is_missed and (is_late or not self._is_listed):
                self._is_missed = True
                self._tell_unseen()
        return {f"alarms/{self.name}": self._state.num_on}

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Prints how often it was triggered, unless each time was printed, or that its metric is missing."""
        state = self._state
        if trainer.is_global_zero:
            self._tell_unseen()
        if trainer.is_global_zero and state.num_times > len(state.told) and self.action == "warn":
            say(
                f"alarm {self.name} was raised {state.num_times} times, for {state.num_on} of "
                f"{state.num_measured} measured updates"
            )

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Raises TrainingError if the alarm stopped the run, which is saved and whose engine is closed."""
        if self._reason is not None:
            reason, self._reason = self._reason, None
            raise TrainingError(
                f"{reason}. The run was stopped after that update "
                f"(callbacks.alarms.{self.name}.action=stop); a checkpoint of it is saved in checkpoints/"
            )

    def state_dict(self) -> dict[str, Any]:
        """Counts, and the values that define what is usual."""
        return asdict(self._state)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restores the counts."""
        self._state = AlarmState(**state_dict)

    def _tell_unseen(self) -> None:
        # A metric that has its own row may need adapters, turns, or an age bound that this run does not have.
        has_row = any(metric.name == self.metric for metric in CATALOGUE)
        if self._state.num_measured or not self._seen or has_row:
            return
        similar = nearest(self.metric, sorted(self._seen))
        hint = f"did you mean {similar[0]}?" if similar else "metrics.jsonl has the names"
        option = f"callbacks.alarms.{self.name}.metric={self.metric}"
        say(f"warning: no update had {option} so far; {hint}")

    def _compare(self, value: float, update: MonitoredUpdate) -> None:
        state, was_on, usual = self._state, self._state.is_on, self._state.median
        side = Detector(self.below, self.above, self.spike, self.patience).take(value, state)
        if state.is_on:
            row = f" in {state.num_beyond_in_a_row} measured updates in a row" if self.patience > 1 else ""
            advice = NAN if side == "nan" else ADVICE.get((self.metric, side), OTHER)
            if (self.metric, side) == NO_GRADIENT and state.answers:
                trainer: Any = update.module.trainer
                advice = unread(state.answers, trainer.datamodule.sampler.limits) or advice
            text = f"alarm {self.name}: {self.metric} is {value:.3g}, {self._excess(side, usual)}{row}"
            state.num_times += not was_on
            self._act(f"{text} (policy version {update.version}). {advice}", update, side, began=not was_on)
        elif was_on and state.is_told:
            state.is_told = False
            text = f"alarm {self.name} is over: {self.metric} is {value:.3g}"
            say(f"{text} (policy version {update.version})")

    def _act(self, text: str, update: MonitoredUpdate, side: str, began: bool) -> None:
        if self.action == "stop":
            self._reason = text
            update.module.trainer.should_stop = True
            # The text becomes the run's error; until that is printed, this line explains why training ends.
            say(f"alarm {self.name}: stopping after this update")
        elif began and side not in self._state.told:
            self._state.told.append(side)
            self._state.is_told = True
            say(f"warning: {text}")

    def _excess(self, side: str, usual: float) -> str:
        key = f"callbacks.alarms.{self.name}"
        if side == "nan":
            return f"which counts as beyond every threshold of {key}"
        if self.spike is not None and side == "spike":
            times = f"{key}.spike.factor={self.spike.factor:g} times {usual:.3g}"
            return f"more than {times}, the median of the updates before"
        return f"{side} {key}.{side}={getattr(self, side):g}"


def build_alarms(nodes: Mapping[str, Mapping[str, Any]]) -> list[Alarm]:
    """Builds the alarms that are not off from their configuration by name."""
    return [
        Alarm(name, **{**node, "spike": Spike(**node["spike"]) if node.get("spike") else None})
        for name, node in nodes.items()
        if node.get("action") not in OFF
    ]
