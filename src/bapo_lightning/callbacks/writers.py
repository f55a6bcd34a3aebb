"""Callbacks that record what the monitors found: metrics, numbers on the console, texts and tokens."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby
from pathlib import Path
from typing import Any, ClassVar

import torch
from lightning import Callback, LightningModule, Trainer
from rich import get_console

from bapo_lightning.callbacks.loggers.run_logger import RunLogger
from bapo_lightning.callbacks.monitors.monitor import Metrics, in_numbers
from bapo_lightning.callbacks.order import Order
from bapo_lightning.data.batches.batch import TrainBatch
from bapo_lightning.objectives.surrogate import clipped_mask
from bapo_lightning.objectives.token_table import TokenTable, needed_by, reads
from bapo_lightning.report.progress.display import on_terminal
from bapo_lightning.report.progress.lines import wrapped
from bapo_lightning.run_folder.journal import Journal
from bapo_lightning.run_folder.record import TOKEN_FILE
from bapo_lightning.types import Group, Reply, Rollout
from bapo_lightning.values import Count, CountOrZero

IN_PROGRESS_BAR = {
    "reward": "train/reward",
    "entropy": "policy/entropy",
    "share": "bapo/positive_share",
    "high": "bapo/clip_high",
}
ON_CONSOLE = {
    "reward": ("train/reward", "{:.3f}"),
    "entropy": ("policy/entropy", "{:.3f}"),
    "positive share": ("bapo/positive_share", "{:.3f}"),
    "low": ("bapo/clip_low", "{:.2f}"),
    "high": ("bapo/clip_high", "{:.2f}"),
    "grad norm": ("train/grad_norm", "{:.2f}"),
    "age": ("staleness/age_mean", "{:.1f}"),
}


class MetricsWriter(Callback):
    """Writes what the monitors before it measured, reading all tensors in one transfer. Monitors do not use
    Lightning's `self.log`, whose bookkeeping runs per metric, because there are fifty metrics.

    It fills `trainer.callback_metrics`, so that Lightning's own callbacks can follow any metric. Comes after
    all monitors.
    """

    order: ClassVar[Order] = Order.WRITE

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Reads all tensors together, drops what is undefined in this update, and writes; `outputs["values"]`
        are those of this update. Every rank gets the values of rank 0, so that callbacks on all ranks decide
        alike.
        """
        values = trainer.strategy.broadcast(to_floats(outputs["metrics"]))
        outputs["values"] = values
        trainer.callback_metrics.update({name: torch.tensor(value) for name, value in values.items()})
        for logger in trainer.loggers:
            logger.log_metrics(values, step=batch_idx)
        if trainer.progress_bar_callback is not None:
            shown = {short: values.get(name, math.nan) for short, name in IN_PROGRESS_BAR.items()}
            pl_module.log_dict(shown, prog_bar=True, logger=False)


@dataclass(eq=False)
class ConsoleLogger(Callback):
    """Prints the numbers that tell whether training is healthy: as one line for output that is piped or read
    later, and on a terminal as many as it takes. Comes after `MetricsWriter`.
    """

    order: ClassVar[Order] = Order.WRITE
    every: Count  # updates between two lines

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Prints on every `every`-th update; a dash where a number is undefined in it."""
        if (batch_idx + 1) % self.every or not trainer.is_global_zero:
            return
        values = outputs["values"]
        parts = [
            f"{title} {form.format(values[name]) if name in values else '-'}"
            for title, (name, form) in ON_CONSOLE.items()
        ]
        head = f"update {batch_idx + 1:>5}/{trainer.num_training_batches}  "
        room = get_console().width - len(head) if on_terminal() else sys.maxsize
        print(head + f"\n{'':{len(head)}}".join(wrapped(parts, room)), flush=True)


@dataclass(eq=False)
class RolloutWriter(Callback):
    """Appends whole groups to `rollouts.jsonl`: problem, texts, turns where an environment answered, scores,
    rewards, advantages, versions, and what the update knew of each token.
    """

    order: ClassVar[Order] = Order.WRITE
    folder: str  # run folder
    needs = frozenset[str]()  # between its writes
    every: Count  # updates between two writes
    num_groups: Count  # groups written each time

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: TrainBatch, batch_idx: int
    ) -> None:
        """Asks for what it writes."""
        self.needs = needed_by(known_tokens) if batch_idx % self.every == 0 else frozenset()

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: TrainBatch, batch_idx: int
    ) -> None:
        """Writes on every `every`-th update, the first included."""
        if batch_idx % self.every == 0 and trainer.is_global_zero:
            groups = (batch.global_batch or batch).groups[: self.num_groups]
            tokenizer = trainer.datamodule.sampler.tokenizer  # type: ignore[attr-defined]
            rows = [{"step": batch_idx, **row} for group in groups for row in group_rows(group, tokenizer)]
            rollouts = [sample.rollout for group in groups for sample in group.samples]
            for row, found in zip(rows, known_tokens(rollouts, outputs["tokens"], tokenizer), strict=True):
                row["tokens"] = found
            Journal(Path(self.folder, "rollouts.jsonl")).append(rows)
            for logger in trainer.loggers:
                if isinstance(logger, RunLogger):
                    logger.log_texts(rows)


@dataclass(eq=False)
class TokenWriter(Callback):
    """Appends the tokens of an update to `tokens.jsonl`, one line an update: importance ratios, probabilities
    under the policy that was trained and under the one that sampled, entropies in nats, advantages, ages in
    updates.
    """

    order: ClassVar[Order] = Order.WRITE
    folder: str  # run folder
    needs = frozenset[str]()  # between its writes
    every: CountOrZero  # updates between two writes; 0 writes nothing

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Asks for what it writes."""
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
    """Returns all finite metrics as Python numbers. A metric that is not finite is undefined in this update
    and left out.
    """
    return {name: value for name, value in sorted(in_numbers(metrics).items()) if math.isfinite(value)}


def group_rows(group: Group, tokenizer: Any) -> Iterator[dict[str, Any]]:
    """Yields one row per sample; one of a conversation has its `turns`."""
    for sample, advantage in zip(group.samples, group.advantages, strict=True):
        rollout = sample.rollout
        yield {
            "problem": group.problem.id,
            "prompt": group.problem.prompt,
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
            **({"turns": list(turn_rows(rollout, tokenizer))} if rollout.replies else {}),
        }


def turn_rows(rollout: Rollout, tokenizer: Any) -> Iterator[dict[str, Any]]:
    """Yields the turns of a conversation, `by` the policy and the environment in alternation, each with its
    `text` as the policy saw it, special tokens included. One of the policy has the number of `calls` and of
    `errors` that it led to, unless they are 0, and whether it was `void`.
    """
    replies = iter(rollout.replies)
    for is_feedback, run in groupby(rollout.segments, key=lambda segment: segment.is_feedback):
        text = tokenizer.decode([token for segment in run for token in segment.token_ids])
        if is_feedback:
            yield {"by": "environment", "text": text}
            continue
        reply = next(replies, Reply())  # none to a turn that the limit of tokens ended
        marks = {"calls": reply.calls, "errors": reply.errors, "void": reply.is_void}
        yield {"by": "policy", "text": text, **{name: mark for name, mark in marks.items() if mark}}


@reads("sequence", "position", "ratio", "age", "slope", "advantage")
def known_tokens(rollouts: Sequence[Rollout], tokens: TokenTable, tokenizer: Any) -> Iterator[dict[str, Any]]:
    """Yields for each of a minibatch's first rollouts the `text` of the tokens that were sampled; the number
    of the `first` one that was trained on; and from there on each token's `ratio`, its `age` in updates, and
    whether its gradient was `clipped`. In a conversation, `feedback_at` has for each text of the environment
    the number of sampled tokens before it.
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
    """Returns one list of length N per column."""
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
    """Five significant digits; more only make the file longer."""
    return float(f"{value:.5g}")
