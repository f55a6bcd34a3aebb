"""Callbacks that record what the monitors found: metrics, numbers on the console, texts and tokens."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, groupby
from pathlib import Path
from typing import Any, ClassVar

import torch
from lightning import Callback, LightningModule, Trainer

from bapo_lightning.callbacks.loggers.run_logger import RunLogger
from bapo_lightning.callbacks.monitors.monitor import Metrics, in_numbers
from bapo_lightning.callbacks.order import Order
from bapo_lightning.data.batches.batch import TrainBatch
from bapo_lightning.objectives.surrogate import clipped_mask
from bapo_lightning.objectives.token_table import TokenTable, needed_by, reads
from bapo_lightning.report.metrics import CATALOGUE
from bapo_lightning.report.progress.display import on_terminal, wrapped
from bapo_lightning.report.progress.terminal import get_console
from bapo_lightning.system.printable import say
from bapo_lightning.system.run_folder.journal import Journal
from bapo_lightning.system.run_folder.record import TOKEN_FILE
from bapo_lightning.system.values import Count, CountOrZero, Seconds
from bapo_lightning.types import Group, Reply, Rollout

SHOWN = [metric for metric in CATALOGUE if metric.short]  # on the console, and in the progress bar


class MetricsWriter(Callback):
    """Writes the monitors' metrics, read in one transfer, and fills `trainer.callback_metrics` for
    Lightning's own callbacks. `self.log` does bookkeeping per metric, and there are fifty.
    """

    order: ClassVar[Order] = Order.WRITE

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Writes, and keeps as `outputs["values"]`, the metrics defined in this update, for all ranks."""
        values = trainer.strategy.broadcast(to_floats(outputs["metrics"]))
        outputs["values"] = values
        trainer.callback_metrics.update({name: torch.tensor(value) for name, value in values.items()})
        for logger in trainer.loggers:
            logger.log_metrics(values, step=batch_idx)
        if trainer.progress_bar_callback is not None:
            shown = {metric.short: values.get(metric.name, math.nan) for metric in SHOWN}
            pl_module.log_dict(shown, prog_bar=True, logger=False)


@dataclass(eq=False)
class ConsoleLogger(Callback):
    """Prints the numbers that show whether training is healthy, on one line unless on a terminal."""

    order: ClassVar[Order] = Order.WRITE
    every: Count  # updates between two lines
    seconds: Seconds | None = None  # after which a line is printed in any case; None: never
    _last: float = field(init=False, default_factory=time.monotonic)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Prints on every `every`-th update, or when it is time; a dash if a number is undefined in it."""
        is_late = self.seconds is not None and time.monotonic() - self._last >= self.seconds
        if not trainer.is_global_zero or ((batch_idx + 1) % self.every and not is_late):
            return
        self._last = time.monotonic()
        values = outputs["values"]
        parts = [
            f"{metric.short} {values[metric.name]:.{metric.decimals}f}"
            if metric.name in values
            else f"{metric.short} -"
            for metric in SHOWN
        ]
        head = f"update {batch_idx + 1:>5}/{trainer.num_training_batches}  "
        room = get_console().width - len(head) if on_terminal() else sys.maxsize
        say(head + f"\n{'':{len(head)}}".join(wrapped(parts, room)))


@dataclass(eq=False)
class RolloutWriter(Callback):
    """Appends whole groups to `rollouts.jsonl` (`group_rows`), with what the update knew of each token."""

    order: ClassVar[Order] = Order.WRITE
    folder: str  # run folder
    needs = frozenset[str]()  # none between its writes
    every: Count  # updates between two writes
    num_groups: Count  # groups written each time

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: TrainBatch, batch_idx: int
    ) -> None:
        """Requests the columns that it writes."""
        self.needs = needed_by(token_records) if batch_idx % self.every == 0 else frozenset()

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: TrainBatch, batch_idx: int
    ) -> None:
        """Writes on every `every`-th update, including the first."""
        if batch_idx % self.every == 0 and trainer.is_global_zero:
            groups = (batch.global_batch or batch).groups[: self.num_groups]
            tokenizer = trainer.datamodule.sampler.tokenizer  # type: ignore[attr-defined]
            rows = [{"step": batch_idx, **row} for group in groups for row in group_rows(group, tokenizer)]
            rollouts = [sample.rollout for group in groups for sample in group.samples]
            for row, records in zip(rows, token_records(rollouts, outputs["tokens"], tokenizer), strict=True):
                row["tokens"] = records
            Journal(Path(self.folder, "rollouts.jsonl")).append(rows)
            for logger in trainer.loggers:
                if isinstance(logger, RunLogger):
                    logger.log_texts(rows)


@dataclass(eq=False)
class TokenWriter(Callback):
    """Appends the tokens of an update to `tokens.jsonl`, one line per update (`token_columns`)."""

    order: ClassVar[Order] = Order.WRITE
    folder: str  # run folder
    needs = frozenset[str]()  # none between its writes
    every: CountOrZero  # updates between two writes; 0 writes nothing

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Requests the columns that it writes."""
        self.needs = needed_by(token_columns) if self._is_due(batch_idx) else frozenset()

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Writes on the last of every `every` updates; the controller has the tokens of all ranks."""
        if self._is_due(batch_idx) and outputs["tokens"] is not None:
            row = {"step": batch_idx, **token_columns(outputs["tokens"])}
            Journal(Path(self.folder, TOKEN_FILE)).append([row])

    def _is_due(self, index: int) -> bool:
        return bool(self.every) and (index + 1) % self.every == 0


def to_floats(metrics: Metrics) -> dict[str, float]:
    """All metrics as Python numbers, except those that are not finite: undefined in this update."""
    return {name: value for name, value in sorted(in_numbers(metrics).items()) if math.isfinite(value)}


def group_rows(group: Group, tokenizer: Any) -> Iterator[dict[str, Any]]:
    """Yields one row per sample, with the `turns` of a conversation; `prompt` has special tokens."""
    for sample, advantage in zip(group.samples, group.advantages, strict=True):
        rollout = sample.rollout
        yield {
            "problem": group.problem.id,
            "prompt": tokenizer.decode(rollout.prompt_ids.tolist()),
            "gold": group.problem.answer,
            "response": sample.text,
            "finish": rollout.finish,
            "status": sample.score.status,
            "score": sample.score.value,
            "reward": sample.reward,
            "advantage": advantage,
            "num_tokens": rollout.length,
            "versions": [segment.version for segment in rollout.sampled_segments],
            "origin": rollout.origin.name.lower(),
            "hint": group.hint,
            **({"turns": list(turn_rows(rollout, tokenizer))} if rollout.replies or rollout.branch else {}),
            **({"branch": rollout.branch, "parent": rollout.parent} if rollout.branch else {}),
        }


def turn_rows(rollout: Rollout, tokenizer: Any) -> Iterator[dict[str, Any]]:
    """Yields the turns of a conversation, `by` the policy and the environment in alternation, each with its
    `text` as the policy saw it, special tokens included; the policy's turns with the `calls` and `errors`
    that they led to and whether they were `void`, unless 0.
    """
    replies = iter(rollout.replies)
    for is_feedback, run in groupby(rollout.segments, key=lambda segment: segment.is_feedback):
        text = tokenizer.decode([token for segment in run for token in segment.token_ids])
        if is_feedback:
            yield {"by": "environment", "text": text}
            continue
        reply = next(replies, Reply())  # no reply follows a turn that the token limit ended
        marks = {"calls": reply.calls, "errors": reply.errors, "void": reply.is_void}
        yield {"by": "policy", "text": text, **{name: mark for name, mark in marks.items() if mark}}


@reads("sequence", "position", "ratio", "age", "slope", "advantage")
def token_records(
    rollouts: Sequence[Rollout], tokens: TokenTable, tokenizer: Any
) -> Iterator[dict[str, Any]]:
    """Yields for each of a minibatch's first rollouts the `text` of the sampled tokens; the number of the
    `first` token that was trained on, and from there each token's `ratio`, `age` in updates, and whether its
    gradient was `clipped`; in a conversation, `feedback_at`: the sampled tokens before each feedback.
    """
    clipped = clipped_mask(tokens.slope, tokens.advantage)
    known = (tokens.sequence, tokens.ratio, tokens.age, clipped, tokens.position)
    sequence, *columns = (column.cpu() for column in known)
    for number, rollout in enumerate(rollouts):
        ratio, age, cut, position = (column[sequence == number].tolist() for column in columns)
        yield {
            "text": [tokenizer.decode([token]) for token in rollout.response_ids],
            "first": position[0] if position else rollout.length,
            "ratio": [_short(value) for value in ratio],
            "age": age,
            "clipped": [int(value) for value in cut],
            **({"feedback_at": list(accumulate(map(len, rollout.turns)))[:-1]} if rollout.replies else {}),
        }


@reads("ratio", "logp", "behaviour_logp", "entropy", "advantage", "age")
def token_columns(tokens: TokenTable) -> dict[str, list[float]]:
    """One list of length N per column; ages in updates, entropies in nats."""
    columns = {
        "ratio": tokens.ratio,
        "probability": tokens.logp.exp(),
        "behaviour_probability": tokens.behaviour_logp.exp(),
        "entropy": tokens.entropy,
        "advantage": tokens.advantage,
        "age": tokens.age,
    }
    return {name: [_short(value) for value in column.tolist()] for name, column in columns.items()}


def _short(value: float) -> float:
    return float(f"{value:.5g}")
