"""The data side of a run on several ranks. Problems, queue, ledger and random order exist once, on the
leader.

    leader (RolloutDataModule)                         followers (WorkerDataModule), in step
    next_batch                                         next_batch: serve the control channel
      refresh_engine                 -- load_weights -->   own engine takes the weights, all gather them together
      generate                       -- generate ------>   own engine samples its part
      proximal log-probs, probe      -- score --------->   own policy scores its part
      minibatch                      -- release ------->   its share, on which it trains

Advantages, order, fates and random draws are then those of one process, whatever the number of ranks.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any

import torch

from bapo_lightning.data.batches.balance import balanced_parts
from bapo_lightning.data.batches.batch import TrainBatch
from bapo_lightning.data.batches.shares import split_over_ranks
from bapo_lightning.data.data_module import RolloutDataModule
from bapo_lightning.data.rollouts.sampler import Generate
from bapo_lightning.errors import RankLost
from bapo_lightning.ranks.channel import Channel, values
from bapo_lightning.rollout.distributed.engine import DistributedEngine
from bapo_lightning.rollout.weight_sync import ScoringWeightSource
from bapo_lightning.types import Rollout


class DistributedPolicy:
    """The policies of all ranks as one, for the leader: what one of them would compute, but shared out."""

    def __init__(self, policy: ScoringWeightSource, control: Channel) -> None:
        self._policy = policy
        self._control = control

    def named_weights(self) -> Iterator[tuple[str, torch.Tensor]]:
        """See `ScoringWeightSource.named_weights`; a collective where weights are sharded."""
        return self._policy.named_weights()

    def response_logprobs(self, rollouts: Sequence[Rollout], token_budget: int) -> list[array[float]]:
        """See `ScoringWeightSource.response_logprobs`; each rank scores a part."""
        parts = balanced_parts(
            [len(rollout.prompt_ids) + rollout.length for rollout in rollouts], self._control.size
        )
        payloads = [([rollouts[place] for place in part], token_budget) for part in parts]
        outcomes = self._control.together(
            "score", payloads, lambda: self._policy.response_logprobs(*payloads[0])
        )
        found = {
            place: made
            for part, answer in zip(parts, values(outcomes), strict=True)
            for place, made in zip(part, answer, strict=True)
        }
        return [found[place] for place in range(len(rollouts))]


class ControllerDataModule(RolloutDataModule):
    """A `RolloutDataModule` whose sampler's engine is a `DistributedEngine`, and which gives every rank its
    share of each minibatch.
    """

    def __init__(self, control: Channel, engines: Channel, **options: Any) -> None:
        """
        Args:
            control: of the trainer's thread.
            engines: the channel that the engine uses; another one where generation overlaps training.
            options: of `RolloutDataModule`.
        """
        super().__init__(**options)
        self._control = control
        self._engines = engines
        self._is_closed = False

    def next_batch(self) -> TrainBatch:
        """The leader's share of the next minibatch, with all of it as `whole`. The followers get theirs."""
        with self._failure_told():
            batch = super().next_batch()
            shares = split_over_ranks(batch, self._control.size)
        self._control.release(shares)
        return replace(shares[0], global_batch=batch, metrics=batch.metrics)

    @contextmanager
    def engine_for_evaluation(self) -> Iterator[Generate]:
        """See `RolloutDataModule.engine_for_evaluation`; the followers serve meanwhile."""
        with self._failure_told(), super().engine_for_evaluation() as generate:
            yield generate
        self._control.release([None] * self._control.size)

    def close(self) -> None:
        """See `RolloutDataModule.close`; a follower's generating thread ends, too."""
        super().close()
        if not self._driver.has_ended:
            self._driver.close()  # the others' engines come to their end, too
        if not self._is_closed and self._engines is not self._control and self._driver.has_ended:
            with suppress(RankLost):
                self._engines.release([None] * self._engines.size)
        self._is_closed = True

    def _policy_source(self) -> ScoringWeightSource:
        return DistributedPolicy(self._owner.policy, self._control)

    def _proximal_logprobs(self, rollouts: Sequence[Rollout]) -> list[array[float]]:
        return self._policy_source().response_logprobs(rollouts, self._owner.micro_batch_tokens)

    def _num_engines(self) -> int:
        engine = self.sampler.engine
        assert isinstance(engine, DistributedEngine)
        return engine.num_engines

    @contextmanager
    def _failure_told(self) -> Iterator[None]:
        """The followers wait for a command: whatever goes wrong here they must hear of."""
        try:
            yield
        except Exception as error:
            with suppress(RankLost):
                self._control.tell_failure(error)
            raise
