"""Base of the callbacks that turn an update into metrics, and numbers of the tokens of a table."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from lightning import Callback, LightningModule, Trainer
from torch import Tensor

from bapo_lightning.callbacks.order import Order
from bapo_lightning.data.batches.batch import TrainBatch
from bapo_lightning.data.batches.model_input import on_device
from bapo_lightning.modules.bapo_module import BapoModule
from bapo_lightning.objectives.bounds import BoundSearch
from bapo_lightning.objectives.token_table import NAMES, TokenTable, name_of
from bapo_lightning.types import Rollout

Metrics = dict[str, float | Tensor]  # 0-dim tensors are read together, by `in_numbers`


@dataclass(frozen=True)
class MonitoredUpdate:
    """Inputs and results of one `training_step`, as monitors see them."""

    index: int  # 0-based number of the update in the run
    version: int  # policy version before the step
    tokens: TokenTable  # tokens of the whole minibatch, scored before the step
    searches: Sequence[BoundSearch]  # one for the minibatch, or one per micro-batch
    batch: TrainBatch  # the whole minibatch
    module: BapoModule
    metrics: Mapping[str, float | Tensor]  # metrics of the step itself and of earlier monitors
    share: TrainBatch | None = None  # this rank's part of the minibatch


def in_numbers(metrics: Mapping[str, float | Tensor]) -> dict[str, float]:
    """All metrics as Python numbers; tensors are fetched in one transfer."""
    tensors = {name: value for name, value in metrics.items() if isinstance(value, Tensor)}
    fetched = torch.stack([value.double() for value in tensors.values()]).tolist() if tensors else []
    return {**metrics, **dict(zip(tensors, fetched, strict=True))}


class Monitor(Callback, ABC):
    """Adds metrics of each update to the outputs of the step; `MetricsWriter` comes last and writes them."""

    order: ClassVar[Order] = Order.MEASURE
    needs: frozenset[str] = frozenset(NAMES)  # columns of the token table that `measure` reads

    @abstractmethod
    def measure(self, update: MonitoredUpdate) -> Metrics:
        """Metrics of one update."""

    @torch.no_grad()
    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: TrainBatch, batch_idx: int
    ) -> None:
        """Measures the update and adds its metrics."""
        assert isinstance(outputs, Mapping) and isinstance(pl_module, BapoModule)
        if outputs["tokens"] is None:
            return self.assist(pl_module, batch, batch_idx)
        update = MonitoredUpdate(
            index=batch_idx,
            version=outputs["version"],
            tokens=outputs["tokens"].only(self.needs, name_of(self)),
            searches=outputs["bounds"],
            batch=batch.global_batch or batch,
            module=pl_module,
            metrics=outputs["metrics"],
            share=batch,
        )
        outputs["metrics"].update(self.measure(update))

    def assist(self, module: BapoModule, share: TrainBatch, index: int) -> None:
        """Takes part, on a worker rank, in what `measure` computes over all ranks; nothing by default."""


Run = tuple[int, int]  # a number, and how many sampled tokens in a row have it


def context_lengths(rollouts: Sequence[Rollout], tokens: TokenTable) -> Tensor:
    """Returns the number of tokens before each token, [N], of prompt, feedback and response."""
    unsampled = [list(_unsampled_before(rollout)) for rollout in rollouts]
    return numbers_of_tokens(unsampled, tokens) + tokens.position


def turn_numbers(rollouts: Sequence[Rollout], tokens: TokenTable) -> Tensor:
    """Returns the number of the turn that each token belongs to, counted from 0, [N]."""
    runs = [[(number, len(turn)) for number, turn in enumerate(rollout.turns)] for rollout in rollouts]
    return numbers_of_tokens(runs, tokens)


def numbers_of_tokens(runs: Sequence[Sequence[Run]], tokens: TokenTable) -> Tensor:
    """Returns the number of each token, [N], from the runs of each rollout's sampled tokens, in row order of
    all ranks' minibatch, and its token table with `sequence` and `position`.
    """
    flat = np.array([run for of_rollout in runs for run in of_rollout], dtype=np.int64).reshape(-1, 2)
    starts = np.cumsum([0, *(sum(length for _, length in of_rollout) for of_rollout in runs)])
    device = tokens.sequence.device
    numbers = on_device(np.repeat(flat[:, 0], flat[:, 1]), device)
    return numbers[on_device(starts, device)[tokens.sequence] + tokens.position]


def _unsampled_before(rollout: Rollout) -> Iterator[Run]:
    before = len(rollout.prompt_ids)
    for segment in rollout.segments:
        if segment.is_feedback:
            before += len(segment.token_ids)
        else:
            yield before, len(segment.token_ids)
