"""The data side of a run on several ranks. Problems, queue, ledger and random order exist only on the
controller (rank 0).

    controller (ControllerDataModule)                 workers (WorkerDataModule), in step
    next_batch                                        next_batch: serve the control channel
      refresh_engine              -- load_weights -->   own engine takes the weights, all gather them together
      generate                    -- generate ------>   own engine samples its part
      scores at entry, probe      -- score --------->   own policy scores its part
      minibatch                   -- release ------->   its share, on which it trains

Advantages, order, fates and random numbers are then the same as in one process, for any number of ranks.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from bapo_lightning.data.batches.batch import TrainBatch, split_over_ranks
from bapo_lightning.data.batches.model_input import balanced_parts
from bapo_lightning.data.data_module import RolloutDataModule
from bapo_lightning.rollout.engine import MERGED, Wanted
from bapo_lightning.rollout.weight_sync import ScoringWeightSource
from bapo_lightning.system.errors import RankLost
from bapo_lightning.system.ranks.channel import Channel, values
from bapo_lightning.types import Rollout


@dataclass(eq=False)
class DistributedPolicy:
    """Presents the policies of all ranks to the controller as one, whose results are computed in parts."""

    policy: ScoringWeightSource
    control: Channel

    @property
    def update_kept(self) -> float | None:
        """See `ScoringWeightSource`."""
        return self.policy.update_kept

    def named_weights(self, wanted: Wanted = MERGED) -> Iterator[tuple[str, torch.Tensor]]:
        """All weights; a collective if they are sharded."""
        return self.policy.named_weights(wanted)

    def weight_shapes(self) -> Iterator[tuple[str, torch.dtype, torch.Size]]:
        """See `MeasuredWeights`; no collective."""
        return self.policy.weight_shapes()

    def response_logprobs(self, rollouts: Sequence[Rollout], token_budget: int) -> list[array[float]]:
        """Lets each rank score a part."""
        return [logp for (logp,) in self.response_scores(rollouts, token_budget, ("logp",))]

    def response_scores(
        self, rollouts: Sequence[Rollout], token_budget: int, names: Sequence[str]
    ) -> list[tuple[array[float], ...]]:
        """Lets each rank score a part."""
        return self._in_parts("score", self.policy.response_scores, rollouts, token_budget, names)

    def reference_logprobs(self, rollouts: Sequence[Rollout], token_budget: int) -> list[array[float]]:
        """Lets each rank score a part."""
        return self._in_parts("score_by_reference", self.policy.reference_logprobs, rollouts, token_budget)

    def _in_parts(
        self, command: str, score: Callable[..., list[Any]], rollouts: Sequence[Rollout], *options: Any
    ) -> list[Any]:
        costs = [len(rollout.prompt_ids) + rollout.length for rollout in rollouts]
        parts = balanced_parts(costs, self.control.size)
        payloads = [([rollouts[index] for index in part], *options) for part in parts]
        outcomes = self.control.together(command, payloads, lambda: score(*payloads[0]))
        answers = zip(parts, values(outcomes), strict=True)
        results = {index: item for part, scored in answers for index, item in zip(part, scored, strict=True)}
        return [results[index] for index in range(len(rollouts))]


class ControllerDataModule(RolloutDataModule):
    """Uses the engines of all ranks (`DistributedEngine`), and gives each rank its share of a minibatch."""

    def __init__(self, control: Channel, engines: Channel, **options: Any) -> None:
        """`control`: channel of the trainer's thread; `engines`: of the generating thread, if any."""
        super().__init__(**options, share_policy=partial(DistributedPolicy, control=control))
        self._control = control
        self._engines = engines
        self._is_closed = False

    def next_batch(self) -> TrainBatch:
        """Returns the controller's share of a minibatch (all of it in `global_batch`), sends the others."""
        with self._failure_reported():
            batch = super().next_batch()
            shares = split_over_ranks(batch, self._control.size)
        self._control.release(shares)
        return replace(shares[0], global_batch=batch, metrics=batch.metrics)

    @contextmanager
    def engine_for_evaluation(self) -> Iterator[None]:
        """See `RolloutDataModule.engine_for_evaluation`; the workers serve meanwhile."""
        with self._served(), super().engine_for_evaluation():
            yield

    def load_resume_state(self, state: dict[str, Any]) -> None:
        """See `RolloutDataModule.load_resume_state`; the workers serve meanwhile."""
        with self._served():
            super().load_resume_state(state)

    def close(self) -> None:
        """See `RolloutDataModule.close`; the generating threads of the workers end as well."""
        super().close()
        # A pass that was still running ends once the engine is closed.
        if self._collector.close() and not self._is_closed and self._engines is not self._control:
            with suppress(RankLost):
                self._engines.release([None] * self._engines.size)
        self._is_closed = True

    @contextmanager
    def _served(self) -> Iterator[None]:
        with self._failure_reported():
            yield
        self._control.release([None] * self._control.size)

    @contextmanager
    def _failure_reported(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            with suppress(RankLost):
                self._control.report_failure(error)
            raise
