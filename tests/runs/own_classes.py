"""What a user writes outside of this package, and names in YAML by `_target_`."""

import signal
import sys
import time
from collections.abc import Sequence
from typing import Any, Literal

import lightning as L
import torch
from torch import Tensor

from bapo_lightning.callbacks.monitors.monitor import Metrics, Monitor, MonitoredUpdate
from bapo_lightning.modules.bound_rules import FixedBounds
from bapo_lightning.objectives.bounds import BoundSearch
from bapo_lightning.rollout.hf.engine import HFEngine
from bapo_lightning.system.phases import advance
from bapo_lightning.system.values import Positive
from bapo_lightning.types import Completion, Problem, Score, ScoreStatus

HOOKS = {name for name in vars(L.Callback) if name.startswith(("on_", "setup", "teardown"))}


def centred(rewards: Tensor, slope: Positive = 1.0) -> Tensor:
    return slope * (rewards - rewards.mean(dim=1, keepdim=True))


class WideningBounds(FixedBounds):
    def __init__(self, width: Positive, step: Positive) -> None:
        super().__init__(1 - width, 1 + width)
        self.step = step

    def choose(self, tables: Sequence[Any]) -> BoundSearch:
        self.low, self.high = self.low - self.step, self.high + self.step
        return super().choose(tables)


class CountingEngine(HFEngine):
    calls = 0

    def generate(self, *arguments: Any, **options: Any) -> Any:
        type(self).calls += 1
        return super().generate(*arguments, **options)


class SlowEngine(HFEngine):
    """An engine whose samples of training take a second, and are counted."""

    def generate(self, requests: Any, sampling: Any) -> Any:
        if len(requests) >= 32:
            time.sleep(0.6)
            advance(5)
            time.sleep(0.6)
            advance(-5)
        return super().generate(requests, sampling)


class StopAt(L.Callback):
    """Sends this process a signal at a moment: a hook, a method of the engine, or when this is made."""

    def __init__(self, moment: str, number: int = signal.SIGTERM) -> None:
        self.moment, self.number = moment, number
        self.reach("made")
        if hasattr(HFEngine, moment):
            work, reach = getattr(HFEngine, moment), self.reach
            setattr(HFEngine, moment, lambda *options, **named: (reach(moment), work(*options, **named))[1])

    def reach(self, moment: str) -> None:
        if moment == self.moment:
            self.moment = ""
            signal.raise_signal(self.number)

    def __getattribute__(self, name: str) -> Any:
        found = super().__getattribute__(name)
        if name not in HOOKS:
            return found
        return lambda *arguments, **options: (self.reach(name), found(*arguments, **options))[1]


class EveryOther(L.Callback):
    needs = frozenset()

    def __init__(self, metric: str, action: Literal["print", "keep"] = "print") -> None:
        self.metric = metric

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx) -> None:
        print(f"own callback: {self.metric} {float(trainer.callback_metrics[self.metric]):.3f}")


class StopsAt(L.Callback):
    def __init__(self, update: int) -> None:
        self.update = update

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx) -> None:
        trainer.should_stop = batch_idx + 1 == self.update


class LongestResponse(Monitor):
    """A monitor: its metric stands in metrics.jsonl like any other."""

    needs = frozenset()

    def measure(self, update: MonitoredUpdate) -> Metrics:
        lengths = update.batch.response_mask.sum(dim=1)
        return {"own/longest_response": torch.max(lengths)}


def short_is_right(
    problems: Sequence[Problem], completions: Sequence[Completion], limit: int = 12
) -> list[Score]:
    short = [item.num_tokens <= limit for item in completions]
    return [Score(float(each), ScoreStatus.CORRECT if each else ScoreStatus.WRONG) for each in short]


def failing_with_the_problem(problems: Sequence[Problem], completions: Sequence[Completion]) -> list[Score]:
    """A reward that cannot judge what is trained on, and says so with the problem's text."""
    if len(problems) >= 32:
        raise ValueError(problems[0].prompt)
    return [Score(0.0, ScoreStatus.WRONG) for _ in problems]


class Exits(L.Callback):
    def on_train_batch_end(self, *arguments: Any) -> None:
        sys.exit()


class ExitsWhenMade(L.Callback):
    def __init__(self) -> None:
        sys.exit(0)
