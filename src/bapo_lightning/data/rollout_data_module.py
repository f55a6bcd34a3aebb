"""Drives generation and serves one minibatch per optimizer update.

    next_batch(version v):
        queue empty?  --yes-->  pull weights (engine becomes version v)  ->  sample, score, admit  ->  advantages  ->  queue.put
             |                                                                                                             |
             +--no------------------------------------------------------------------------------> queue.take  ->  collate

Weights are *pulled* here, right before generation. Pushing them from a hook at the start of a step is always one version late, and a
loader without a length makes Lightning fetch one batch ahead; `RolloutLoader` therefore has a length and a lazy body.
"""

from __future__ import annotations

import pickle
import time
from array import array
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol, cast

import lightning as L
import torch

from bapo_lightning.data.batch import TrainBatch, collate
from bapo_lightning.data.problem_stream import ProblemStream
from bapo_lightning.data.proximal import with_proximal_logprobs
from bapo_lightning.data.regime import ReplayRegime
from bapo_lightning.data.replay_queue import ReplayQueue
from bapo_lightning.data.rollout_sampler import RolloutSampler, SamplingStatistics
from bapo_lightning.rollout.engine import EngineDied
from bapo_lightning.rollout.recovery import EngineRecovery
from bapo_lightning.rollout.weight_sync import ScoringWeightSource, SyncReport, WeightSync
from bapo_lightning.types import Group, Problem, Rollout


class Admission(Protocol):
    """Chooses which sampled groups are trained on."""

    def collect(self, num_groups: int, sample: Callable[[int], list[Group]], statistics: SamplingStatistics) -> list[Group]:
        """Exactly `num_groups` groups, drawn through `sample`."""
        ...


class VersionedPolicyOwner(Protocol):
    """What this module needs of the LightningModule it feeds."""

    policy: ScoringWeightSource

    @property
    def policy_version(self) -> int:
        """Optimizer updates made so far."""
        ...

    def proximal_logprobs(self, rollouts: Sequence[Rollout]) -> list[array[float]]:
        """Log-probs of each rollout's response tokens under the current weights, in nats."""
        ...


class RolloutDataModule(L.LightningDataModule):
    """Algorithm 1, lines 2-6: sample with the behaviour policy, compute rewards and advantages, queue for replay.

    Synchronous: generation happens inside `next_batch`, while training waits.
    """

    def __init__(
        self,
        sampler: RolloutSampler,
        weight_sync: WeightSync,
        recovery: EngineRecovery,
        problems: Sequence[Problem],
        admission: Admission,
        advantages: Callable[[torch.Tensor], torch.Tensor],
        regime: ReplayRegime,
        group_size: int,
        prompts_per_batch: int,
        num_rollout_batches: int,
        seed: int,
        recompute_logprobs: bool = False,
    ) -> None:
        """
        Args:
            sampler: samples and scores groups with the rollout engine.
            weight_sync: hands the trainer's weights to that engine.
            recovery: restarts the engine when its process dies.
            problems: training set.
            admission: which sampled groups are trained on.
            advantages: rewards[P, G] -> advantages[P, G].
            regime: how often a rollout batch is reused.
            group_size: G, responses per problem.
            prompts_per_batch: P, problems per rollout batch.
            num_rollout_batches: length of the run; updates = this times the regime's updates per rollout batch.
            seed: of the data order and the minibatch order.
            recompute_logprobs: score each fresh rollout batch with the trainer's weights, as a correction needs.
        """
        super().__init__()
        self.sampler = sampler
        self.regime = regime
        self._weight_sync = weight_sync
        self._recovery = recovery
        self.sampler.revive = self._revive_engine
        self._stream = ProblemStream(problems, seed)
        self._admission = admission
        self._advantages = advantages
        self._group_size = group_size
        self._prompts_per_batch = prompts_per_batch
        self._num_rollout_batches = num_rollout_batches
        self._queue = ReplayQueue(regime.epochs, regime.minibatches, seed)
        self._sync_reports: list[SyncReport] = []
        self._recompute_logprobs = recompute_logprobs

    @property
    def num_updates(self) -> int:
        """Optimizer updates of the whole run."""
        return self._num_rollout_batches * self.regime.updates_per_rollout_batch

    def train_dataloader(self) -> RolloutLoader:
        """Lightning's source of batches."""
        return RolloutLoader(self)

    def next_batch(self) -> TrainBatch:
        """The minibatch of the next update, generating a new rollout batch first when the last one is used up."""
        start = time.perf_counter()
        proximal: dict[str, float] = {}
        if not len(self._queue):
            self.refresh_engine()
            groups = self._produce()
            self.sampler.engine.sleep()
            if self._recompute_logprobs:
                groups, proximal = self._scored(groups)
            self._queue.put(groups)
        statistics = self.sampler.statistics.take()
        reports, self._sync_reports = self._sync_reports, []
        metrics = (
            production_metrics(statistics) | sync_metrics(reports) | {"rollout/engine_restarts": self._recovery.take_restarts()} | proximal
        )
        known_seconds = sum(metrics.get(f"time/{part}_seconds", 0.0) for part in ("rollout", "reward", "sync", "proximal"))
        batch = collate(self._queue.take(), metrics)
        metrics["time/wait_seconds"] = max(time.perf_counter() - start - known_seconds, 0.0)
        return batch

    def rank_state(self) -> dict[str, Any]:
        """Everything of this rank's data side that a checkpoint must hold: primitives, lists, dicts and tensors only."""
        rest = {
            "queue": self._queue.state(),
            "statistics": self.sampler.statistics,
            "num_drawn": self.sampler._num_drawn,
            "sync_reports": self._sync_reports,
        }
        packed = torch.frombuffer(bytearray(pickle.dumps(rest)), dtype=torch.uint8)
        return {
            "summary": f"data position, queue of {len(self._queue)} minibatches",
            "stream": self._stream.state(),
            "restarts": [self._recovery.num_restarts, self._recovery._num_taken],
            "packed": packed,
        }

    def load_rank_state(self, state: dict[str, Any]) -> None:
        """Go on where `rank_state` was taken. Called before the first `next_batch`."""
        rest = pickle.loads(state["packed"].numpy().tobytes())
        self._queue.load(rest["queue"])
        self.sampler.statistics = rest["statistics"]
        self.sampler._num_drawn = rest["num_drawn"]
        self._sync_reports = rest["sync_reports"]
        self._stream.load(state["stream"])
        self._recovery.num_restarts, self._recovery._num_taken = state["restarts"]

    def refresh_engine(self) -> None:
        """Give the engine the trainer's current weights unless it has them already."""
        owner = cast(VersionedPolicyOwner, self.trainer.lightning_module)  # type: ignore[union-attr]
        engine, vocab_size = self.sampler.engine, self.sampler.tokenizer.vocab_size
        while engine.version != owner.policy_version:
            try:
                self._sync_reports.append(self._weight_sync.push(owner.policy, engine, owner.policy_version, vocab_size))
            except EngineDied as death:
                self._recovery.restart(engine, death)

    def _revive_engine(self, death: EngineDied) -> None:
        self._recovery.restart(self.sampler.engine, death)
        self.refresh_engine()

    def teardown(self, stage: str) -> None:
        """Close the engine at the end of training."""
        self.sampler.engine.close()

    def _produce(self) -> list[Group]:
        def sample(count: int) -> list[Group]:
            return self.sampler.sample_groups(self._stream.take(count), self._group_size)

        groups = self._admission.collect(self._prompts_per_batch, sample, self.sampler.statistics)
        advantages = self._advantages(torch.tensor([group.rewards for group in groups], dtype=torch.float32)).tolist()
        return [Group(group.problem, group.samples, tuple(values)) for group, values in zip(groups, advantages, strict=True)]

    def _scored(self, groups: list[Group]) -> tuple[list[Group], dict[str, float]]:
        owner = cast(VersionedPolicyOwner, self.trainer.lightning_module)  # type: ignore[union-attr]
        return with_proximal_logprobs(groups, owner.proximal_logprobs, owner.policy_version)


class RolloutLoader:
    """One pass over a run's updates. Has a length, so that Lightning does not fetch ahead, and is lazy, so that a batch is produced only
    after the update before it.
    """

    def __init__(self, data_module: RolloutDataModule) -> None:
        self._data_module = data_module

    def __len__(self) -> int:
        """Updates of the whole run."""
        return self._data_module.num_updates

    def __iter__(self) -> Iterator[TrainBatch]:
        """Batches without end; `__len__` ends the epoch."""
        while True:
            yield self._data_module.next_batch()


def sync_metrics(reports: Sequence[SyncReport]) -> dict[str, float]:
    """Time of the weight syncs since the last update, and how far engine and trainer were apart after the last one."""
    metrics = {"time/sync_seconds": sum(report.seconds for report in reports)}
    if reports:
        metrics |= {
            "sync/transfer_seconds": sum(report.transfer_seconds for report in reports),
            "sync/logp_diff_mean": reports[-1].mean_logprob_difference,
            "sync/logp_diff_max": reports[-1].max_logprob_difference,
        }
    return metrics


def production_metrics(statistics: SamplingStatistics) -> dict[str, float]:
    """Metrics of what was sampled since the last update; zeros when nothing was."""
    metrics: dict[str, float] = {
        "time/rollout_seconds": statistics.rollout_seconds,
        "time/reward_seconds": statistics.reward_seconds,
        "rollout/dropped": statistics.num_dropped_groups,
        "rollout/evicted": 0,
        "rollout/resumed": 0,
        "rollout/cut": statistics.num_cut,
        "rollout/reward_timeouts": statistics.num_reward_timeouts,
        "rollout/uniform_groups": statistics.num_uniform_groups,
        "rollout/num_samples": statistics.num_rollouts,
        "rollout/num_tokens": statistics.num_tokens,
    }
    if statistics.rollout_seconds > 0:
        metrics["rollout/tokens_per_second"] = statistics.num_tokens / statistics.rollout_seconds
    return metrics
