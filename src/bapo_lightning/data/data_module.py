"""Serves one minibatch per optimizer update, and asks the rollout driver for groups when the last rollout
batch is used up.

    next_batch(version v):
        queue empty?  --yes-->  past groups to reuse + fresh groups from the driver  ->  advantages  ->  queue.put
             |                                                                                              |
             +--no---------------------------------------------------------------> queue.take  ->  collate

Weights are *pulled* from here, right before generation. Pushing them from a hook at the start of a step is
always one version late, and a loader without a length makes Lightning fetch one batch ahead; `RolloutLoader`
therefore has a length and a lazy body.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Protocol, cast

import lightning as L
import torch

from bapo_lightning.data.batches.batch import TrainBatch, collate
from bapo_lightning.data.batches.replay_queue import ReplayQueue
from bapo_lightning.data.batches.reuse_buffer import ReuseBuffer
from bapo_lightning.data.problems.stream import ProblemStream
from bapo_lightning.data.rollouts.admission import Admission
from bapo_lightning.data.rollouts.async_collector import AsyncCollector
from bapo_lightning.data.rollouts.collector import Collector, SyncCollector, TrainerState
from bapo_lightning.data.rollouts.group_state import ArrayStore
from bapo_lightning.data.rollouts.ledger import Ledger
from bapo_lightning.data.rollouts.proximal import with_proximal_logprobs
from bapo_lightning.data.rollouts.regime import Regime
from bapo_lightning.data.rollouts.sampler import Generate, RolloutSampler
from bapo_lightning.data.rollouts.scheduler import RolloutScheduler
from bapo_lightning.data.rollouts.statistics import sync_metrics
from bapo_lightning.rollout.engine import EngineDied, Generation, GenerationRequest
from bapo_lightning.rollout.recovery import EngineRecovery, generate_all
from bapo_lightning.rollout.weight_sync import ScoringWeightSource, SyncReport, WeightSync
from bapo_lightning.types import Group, Rollout


class VersionedPolicyOwner(Protocol):
    """What this module needs of the LightningModule it feeds."""

    policy: ScoringWeightSource
    micro_batch_tokens: int

    @property
    def policy_version(self) -> int:
        """Optimizer updates made so far."""
        ...

    def proximal_logprobs(self, rollouts: Sequence[Rollout]) -> list[array[float]]:
        """Log-probs of each rollout's response tokens under the current weights, in nats."""
        ...


class BatchSource(Protocol):
    """What a `RolloutLoader` reads."""

    num_updates: int

    def next_batch(self) -> TrainBatch:
        """The minibatch of the next update."""
        ...


class RolloutDataModule(L.LightningDataModule):
    """Algorithm 1, lines 2-6: sample with the behaviour policy, compute rewards and advantages, queue for
    replay.

    `num_updates` is the length of the run in optimizer updates.
    """

    def __init__(
        self,
        sampler: RolloutSampler,
        weight_sync: WeightSync,
        recovery: EngineRecovery,
        stream: ProblemStream,
        admission: Admission,
        advantages: Callable[[torch.Tensor], torch.Tensor],
        regime: Regime,
        group_size: int,
        prompts_per_batch: int,
        num_rollout_batches: int,
        seed: int,
        recompute_logprobs: bool = False,
        ledger_path: Path | None = None,
    ) -> None:
        """
        Args:
            sampler: samples and scores groups with the rollout engine.
            weight_sync: hands the trainer's weights to that engine.
            recovery: restarts the engine when its process dies.
            stream: of problems.
            admission: which sampled groups are trained on.
            advantages: rewards[P, G] -> advantages[P, G].
            regime: what is generated when, for how long it may be trained on.
            group_size: G, responses per problem.
            prompts_per_batch: P, problems per rollout batch.
            num_rollout_batches: length of the run.
            seed: of the minibatch order.
            recompute_logprobs: score each rollout batch with the trainer's weights when it enters training,
                as a correction needs.
            ledger_path: where the fate of every draw is written down; None: nowhere.
        """
        super().__init__()
        self.sampler, self.regime = sampler, regime
        self._weight_sync, self._recovery = weight_sync, recovery
        self._prompts_per_batch = prompts_per_batch
        self.num_updates = num_rollout_batches * regime.updates_per_rollout_batch
        self._advantages, self._recompute_logprobs = advantages, recompute_logprobs
        self._stream = stream
        self._queue = ReplayQueue(regime.epochs, regime.minibatches, seed)
        self._reuse = ReuseBuffer(regime, prompts_per_batch)
        self._clock = 0  # updates asked for
        self._sync_reports: list[SyncReport] = []
        sizes = (group_size, prompts_per_batch, num_rollout_batches)
        self._driver = self._make_driver(
            RolloutScheduler(self._stream, sampler, admission, regime, Ledger(ledger_path), *sizes)
        )

    def train_dataloader(self) -> RolloutLoader:
        """Lightning's source of batches."""
        return RolloutLoader(self)

    def next_batch(self) -> TrainBatch:
        """The minibatch of the next update; fills a new rollout batch first when the last one is used up."""
        start = time.perf_counter()
        state = self._trainer_state()
        if len(self._queue):
            self._driver.between_updates(state)
            measured: dict[str, float] = {}
        else:
            groups, measured = self._rollout_batch(state)
            self._queue.put(groups)
        metrics = self._rollout_metrics() | measured
        oldest_trained = state.version - self.regime.age_bound if self.regime.stale_action == "mask" else None
        batch = collate(self._queue.take(), metrics, oldest_trained)
        self._clock += 1
        waited_for = (
            () if self.regime.async_generation else ("rollout", "reward")
        )  # with overlap these passed beside training
        known_seconds = sum(
            metrics.get(f"time/{part}_seconds", 0.0) for part in (*waited_for, "sync", "proximal")
        )
        metrics["time/wait_seconds"] = max(time.perf_counter() - start - known_seconds, 0.0)
        return batch

    def refresh_engine(self) -> None:
        """Give the engine the trainer's current weights unless it has them already."""
        version, engine, vocab_size = (
            self._owner.policy_version,
            self.sampler.engine,
            self.sampler.tokenizer.vocab_size,
        )
        while engine.version != version:
            try:
                report = self._weight_sync.push(
                    self._policy_source(), engine, version, vocab_size, self._num_engines()
                )
                self._sync_reports.append(report)
            except EngineDied as death:
                self._recovery.restart(engine, death)

    @contextmanager
    def engine_for_evaluation(self) -> Iterator[Generate]:
        """The engine with the current weights, for the trainer's own use, between two updates."""
        with self._driver.exclusive_engine(self._trainer_state()):
            self.refresh_engine()
            yield self._generate
            self.sampler.engine.sleep()

    def resume_state(self) -> dict[str, Any]:
        """All that a run must remember to go on exactly; `summary` says in words what it is."""
        store = ArrayStore()
        with self._driver.locked() as scheduler:
            state: dict[str, Any] = {
                "scheduler": scheduler.state_dict(store),
                "summary": f"{scheduler.describe()}, queue of {len(self._queue)} minibatches",
            }
        if len(self._reuse):
            state["summary"] += f", {len(self._reuse)} groups for reuse"
        state["sync_reports"] = [asdict(report) for report in self._sync_reports]
        state |= {
            "clock": self._clock,
            "queue": self._queue.state_dict(store),
            "reuse": self._reuse.state_dict(store),
        }
        return state | {"arrays": store.state_dict()}

    def load_resume_state(self, state: dict[str, Any]) -> None:
        """Go on from there. Raises DataError when the training set or the ledger is not that of the
        checkpoint.
        """
        store = ArrayStore.from_state_dict(state["arrays"])
        with self._driver.locked() as scheduler:
            scheduler.load_state_dict(state["scheduler"], store)
        self._clock = state["clock"]
        self._sync_reports = [SyncReport(**report) for report in state["sync_reports"]]
        self._queue.load_state_dict(state["queue"], store, self._stream.problem)
        self._reuse.load_state_dict(state["reuse"], store, self._stream.problem)

    def teardown(self, stage: str) -> None:
        """Say what became of the rest if the run is complete, and close."""
        self._driver.close()
        if self._clock == self.num_updates and not len(self._queue):
            with self._driver.locked() as scheduler:
                scheduler.drop_rest(self._trainer_state().version)
        self.close()

    def close(self) -> None:
        """Stop generating, give the engine back and end the reward's processes. Calling it twice is fine."""
        self._driver.close()
        self.sampler.close()

    @property
    def _owner(self) -> VersionedPolicyOwner:
        return cast(VersionedPolicyOwner, self.trainer.lightning_module)  # type: ignore[union-attr]

    def _policy_source(self) -> ScoringWeightSource:
        return self._owner.policy

    def _proximal_logprobs(self, rollouts: Sequence[Rollout]) -> list[array[float]]:
        return self._owner.proximal_logprobs(rollouts)

    def _num_engines(self) -> int:
        return 1

    def _trainer_state(self) -> TrainerState:
        return TrainerState(self._owner.policy_version, self._clock)

    def _make_driver(self, scheduler: RolloutScheduler) -> Collector:
        if self.regime.async_generation:
            limit = self.regime.wait_warning_seconds
            return AsyncCollector(
                scheduler, self.sampler, self._recovery, self.refresh_engine, self._prompts_per_batch, limit
            )
        return SyncCollector(scheduler, self.sampler, self._generate, self.refresh_engine)

    def _generate(self, requests: Sequence[GenerationRequest]) -> list[Generation]:
        """Sample, if need be across deaths of the engine, all under the same weights."""
        return generate_all(self.sampler.engine, requests, self.sampler.sampling, self._revive_engine)

    def _revive_engine(self, death: EngineDied) -> None:
        self._recovery.restart(self.sampler.engine, death)
        self.refresh_engine()

    def _rollout_batch(self, state: TrainerState) -> tuple[list[Group], dict[str, float]]:
        """Groups for the next U updates, and what was measured of them."""
        replayed = self._reuse.draw(state.version)
        with self._driver.locked() as scheduler:
            scheduler.enter_replayed(len(replayed))
        fresh = self._driver.next_groups(self._prompts_per_batch - len(replayed), state)
        rewards = torch.tensor([group.rewards for group in fresh], dtype=torch.float32)
        fresh = [
            replace(group, advantages=tuple(row))
            for group, row in zip(fresh, self._advantages(rewards).tolist(), strict=True)
        ]
        self._reuse.add(fresh)
        groups, measured = fresh + replayed, {"reuse/share": len(replayed) / self._prompts_per_batch}
        if self._recompute_logprobs:
            groups, proximal = with_proximal_logprobs(groups, self._proximal_logprobs, state.version)
            measured |= proximal
        return groups, measured

    def _rollout_metrics(self) -> dict[str, float]:
        reports, self._sync_reports = self._sync_reports, []
        outdated, self._reuse.num_outdated = self._reuse.num_outdated, 0
        with self._driver.locked() as scheduler:
            metrics = scheduler.statistics.take().metrics() | {
                "rollout/running": scheduler.num_running,
                "rollout/ready": scheduler.num_ready,
            }
        return (
            metrics
            | sync_metrics(reports)
            | {
                "rollout/engine_restarts": self._recovery.take_restarts(),
                "reuse/kept": len(self._reuse),
                "reuse/outdated": outdated,
            }
        )


class RolloutLoader:
    """One pass over a run's updates. Has a length, so that Lightning does not fetch ahead, and is lazy, so
    that a batch is produced only after the update before it.
    """

    def __init__(self, data_module: BatchSource) -> None:
        self._data_module = data_module

    def __len__(self) -> int:
        """Updates of the whole run."""
        return self._data_module.num_updates

    def __iter__(self) -> Iterator[TrainBatch]:
        """Batches without end; `__len__` ends the epoch."""
        while True:
            yield self._data_module.next_batch()
