"""The data side of training (Algorithm 1, lines 2-6), in the data flow of the whole package:

    problem_table --select--> ProblemStream
                                  | WorkItem: a problem in an epoch
                                  v
              +---------- RolloutScheduler ---------- take_batch -----+    admission, age bound;
              | RunningGroup           ^                              |    fates -> ledger.jsonl
              v                        | Group                        v
    RolloutSampler.requests     RolloutSampler.score             stages, ReuseBuffer
              |                   reward -> Score                     | P groups
              | GenerationRequest advantages(rewards[P, G])           v
              v                        ^                         ReplayQueue: E epochs x M minibatches
    RestartingEngine                   |                              | collate
      HFEngine, VLLMLocalEngine,       | Rollout: Segments of         v
      ChildEngine, VLLMServerEngine,   | tokens, log-probs,      TrainBatch (each rank: its share)
      DistributedEngine, RayEngine ----+ version                      | RolloutLoader
              ^                                                       v
              | WeightSync.push: weights of a version, proven    BapoModule.training_step
              |                                                    MicroBatch -> TokenTable -> bounds
              +--------------- Policy <-------- optimizer --------   -> objective -> backward
    A collector drives the left half:                                 | outputs
      SyncCollector       between two updates                         v
      AsyncCollector      in a thread, pass after pass           Monitors -> MetricsWriter -> loggers
                          (with a StreamScheduler, a pass is some decoding steps)
      ScheduledCollector  repeats a recorded run of an AsyncCollector

    version: optimizer updates in the weights; each token keeps the version of the policy that sampled it
    age:     trainer's version minus token's version; at most Regime.age_bound in training
    clock:   updates attempted; it runs ahead of the version after skipped updates

Weights are *pulled* from here, right before generation. Pushing them from a hook at the start of a step is
always one version late, and a loader without a length makes Lightning fetch one batch ahead; `RolloutLoader`
therefore has a length and a lazy body.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, cast

import lightning as L

from bapo_lightning.data.batches.batch import RolloutLoader, TrainBatch, collate
from bapo_lightning.data.batches.replay_queue import ReplayQueue, ReuseBuffer
from bapo_lightning.data.problems.stream import ProblemStream
from bapo_lightning.data.rollouts.collector import MakeCollector, TrainerState, collector_for, scheduler_kind
from bapo_lightning.data.rollouts.group_state import ArrayStore
from bapo_lightning.data.rollouts.observer import Ledger, Observer, SelectionBias, sync_metrics
from bapo_lightning.data.rollouts.regime import Regime
from bapo_lightning.data.rollouts.replay_rule import ReplayRule
from bapo_lightning.data.rollouts.sampler import RolloutSampler
from bapo_lightning.data.rollouts.schedule import Row, ScheduleRecorder
from bapo_lightning.data.rollouts.stages import BatchStage, EnteringBatch, StageTools
from bapo_lightning.objectives.advantages.reward_batch import Remembers
from bapo_lightning.rollout.weight_sync import ScoringWeightSource, SyncReport, VersionedPolicyOwner
from bapo_lightning.system.run_folder.record import SCHEDULE_FILE
from bapo_lightning.types import Group, Sample


class RolloutDataModule(L.LightningDataModule):
    """Serves one minibatch per update, and collects a rollout batch when the last one is used up."""

    def __init__(
        self,
        sampler: RolloutSampler,
        stream: ProblemStream,
        regime: Regime,
        group_size: int,  # G, responses per problem
        prompts_per_batch: int,  # P, problems per rollout batch
        num_rollout_batches: int,  # length of the run
        seed: int,  # of the minibatch order
        stages: Mapping[str, BatchStage] | None = None,  # by name, in order; a `ReplayRule` keeps groups
        folder: Path | None = None,  # of the run, for the ledger and the schedule; None: no files
        schedule: Sequence[Row] | None = None,  # recorded by an asynchronous run, to be followed
        # Wraps this rank's policy in a `DistributedPolicy` of all ranks.
        share_policy: Callable[[ScoringWeightSource], ScoringWeightSource] = lambda policy: policy,
        make_collector: MakeCollector = collector_for,
    ) -> None:
        super().__init__()
        self.sampler, self.regime = sampler, regime
        self.num_updates = num_rollout_batches * regime.updates_per_rollout_batch
        self._prompts_per_batch = prompts_per_batch
        self._stages = stages or {}
        self._share_policy, self._stream = share_policy, stream
        self._queue = ReplayQueue(regime.epochs, regime.minibatches, seed, regime.reuse_minibatches)
        rules = [stage for stage in self._stages.values() if isinstance(stage, ReplayRule)]
        self._reuse = ReuseBuffer(regime, prompts_per_batch, next(iter(rules), None))
        self._clock = 0  # updates attempted
        self._entry_version = 0  # of the trainer when the batch in the queue entered training
        sampler.keep_replies(folder)
        self._selection_bias = SelectionBias()
        observers: list[Observer] = [self._selection_bias]
        observers += [Ledger(folder / "ledger.jsonl")] if folder else []
        if folder and regime.async_generation:
            observers.append(ScheduleRecorder(folder / SCHEDULE_FILE))
        self._scheduler = scheduler_kind(regime)(
            stream, sampler, regime, group_size, prompts_per_batch, num_rollout_batches, observers
        )
        self._collector = make_collector(self._scheduler, sampler, self, prompts_per_batch, schedule)

    def train_dataloader(self) -> RolloutLoader:
        """Lightning's source of batches."""
        return RolloutLoader(self.num_updates, self.next_batch)

    def next_batch(self) -> TrainBatch:
        """Returns the minibatch of the next update; collects a rollout batch first when none is left."""
        start = time.perf_counter()
        before = sum(report.seconds for report in self.sampler.engine.sync_reports)  # for a validation
        state = self._trainer_state()
        measured: dict[str, float] = {}
        if len(self._queue):
            self._collector.between_updates(state)
        else:
            groups, measured = self._rollout_batch(state)
            self._queue.put(groups)
            self._entry_version = state.version
        metrics: dict[str, float] = {}
        oldest_trained = state.version - self.regime.age_bound if self.regime.stale_action == "mask" else None
        batch = collate(self._queue.take(), metrics, oldest_trained, self._entry_version)
        metrics |= self._rollout_metrics(batch.trained_samples) | measured
        self._clock += 1
        # During training, rollouts and rewards cost the trainer nothing.
        known = {"time/sync_seconds", *(name for name in measured if name.startswith("time/"))}
        if not self.regime.async_generation:
            known |= {"time/rollout_seconds", "time/reward_seconds"}
        known_seconds = sum(metrics.get(name, 0.0) for name in known) - before
        metrics["time/wait_seconds"] = max(time.perf_counter() - start - known_seconds, 0.0)
        return batch

    def refresh_engine(self) -> None:
        """Gives the engine the trainer's current weights unless it has them already."""
        if self.sampler.engine.version != self._owner.policy_version:
            self.push_weights()

    def hand_over_weights(self) -> None:
        """Gives the engine the trainer's current weights, unproven, unless it has them already."""
        if self.sampler.engine.version != self._owner.policy_version:
            self.sampler.engine.hand_over(self._policy, self._owner.policy_version)

    def push_weights(self) -> None:
        """Gives the engine the trainer's current weights."""
        self.sampler.engine.load_weights(self._policy, self._owner.policy_version)

    @contextmanager
    def engine_for_evaluation(self) -> Iterator[None]:
        """Context between updates in which the engine has current weights and only the caller uses it."""
        with self._collector.exclusive_engine(self._trainer_state()):
            self.refresh_engine()
            yield
            self.sampler.engine.sleep()

    def resume_state(self) -> dict[str, Any]:
        """Returns all that a resume needs to continue exactly, as primitives and tensors. It is the state of
        one moment: under the lock no thread changes anything or writes a row. `summary` describes it in
        words; `journals` has the sizes in bytes of the files that threads write, by name.
        """
        with self._scheduler.lock:
            return self._resume_state(ArrayStore())

    def _resume_state(self, store: ArrayStore) -> dict[str, Any]:
        collector = self._collector.state_dict(store)  # first, since it may change the scheduler's state
        scheduler = self._scheduler.state_dict(store)
        summary = f"{self._scheduler.describe()}, queue of {len(self._queue)} minibatches"
        if len(self._reuse):
            summary += f", {len(self._reuse)} groups for reuse"
        return {
            "journals": self._scheduler.journal_sizes,
            "scheduler": scheduler,
            "collector": collector,
            "summary": summary,
            "sync_reports": [asdict(report) for report in self.sampler.engine.sync_reports],
            "clock": self._clock,
            "entry_version": self._entry_version,
            "engine_version": self.sampler.engine.version,
            "queue": self._queue.state_dict(store),
            "reuse": self._reuse.state_dict(store),
            "stages": {
                name: stage.state_dict()
                for name, stage in self._stages.items()
                if isinstance(stage, Remembers)
            },
            "rules": self.sampler.rules.state_dict(),
            "arrays": store.state_dict(),
        }

    def load_resume_state(self, state: dict[str, Any]) -> None:
        """Restores a state. Raises DataError if the training set is not the checkpoint's."""
        store = ArrayStore.from_state_dict(state["arrays"])
        with self._scheduler.lock:
            self._scheduler.load_state_dict(state["scheduler"], store)
        self._collector.load_state_dict(state["collector"], store)
        self._clock, self._entry_version = state["clock"], state["entry_version"]
        if state["engine_version"] == self._owner.policy_version:
            self.push_weights()
        self.sampler.engine.sync_reports = [SyncReport(**report) for report in state["sync_reports"]]
        self._queue.load_state_dict(state["queue"], store, self._stream.problem)
        self._reuse.load_state_dict(state["reuse"], store, self._stream.problem)
        for name, stage in self._stages.items():
            if isinstance(stage, Remembers):
                stage.load_state_dict(state["stages"][name])
        self.sampler.rules.load_state_dict(state["rules"])

    def teardown(self, stage: str) -> None:
        """Records the fates of all remaining groups if the run is complete, and closes."""
        self._collector.close()
        if self._clock == self.num_updates and not len(self._queue):
            with self._scheduler.lock:
                self._collector.note("end")
                self._scheduler.drop_rest(self._trainer_state().version)
        self.close()

    def close(self) -> None:
        """Stops generating, closes the engine and ends the reward's processes. May be called twice."""
        self._collector.close()
        self.sampler.close()

    @property
    def _owner(self) -> VersionedPolicyOwner:
        return cast(VersionedPolicyOwner, self.trainer.lightning_module)  # type: ignore[union-attr]

    @property
    def _policy(self) -> ScoringWeightSource:
        return self._share_policy(self._owner.policy)

    def _trainer_state(self) -> TrainerState:
        return TrainerState(self._owner.policy_version, self._clock)

    def _rollout_batch(self, state: TrainerState) -> tuple[list[Group], dict[str, float]]:
        replayed = self._reuse.choose(state.version)
        with self._scheduler.lock:
            self._scheduler.enter_replayed(len(replayed))
        fresh = self._collector.next_groups(self._prompts_per_batch - len(replayed), state)
        measured = {"reuse/share": len(replayed) / self._prompts_per_batch}
        batch = EnteringBatch(fresh)
        tools = StageTools(
            self._owner,
            self._policy,
            self.sampler,
            self.refresh_engine,
            self.sampler.rules.admits,
            device=lambda: self.trainer.strategy.root_device,  # type: ignore[union-attr]
        )
        for stage in self._stages.values():
            if not stage.needs_whole_batch:
                measured |= stage(batch, tools)
        as_they_came, batch.replayed = batch.fresh, replayed
        for stage in self._stages.values():
            if stage.needs_whole_batch:
                measured |= stage(batch, tools)
        # Each use of a group assigns the advantages of the whole batch again.
        self._reuse.add(
            group for group, entered in zip(as_they_came, batch.fresh, strict=True) if any(entered.advantages)
        )
        return batch.groups, measured

    def _rollout_metrics(self, trained: Sequence[Sample]) -> dict[str, float]:
        outdated, self._reuse.num_outdated = self._reuse.num_outdated, 0
        with self._scheduler.lock:
            self._collector.note("metrics")
            metrics = self._scheduler.statistics.take().metrics() | self._selection_bias.metrics(trained)
            metrics |= {
                "rollout/running": len(self._scheduler.running),
                "rollout/ready": self._scheduler.num_ready,
            }
        engine = self.sampler.engine
        reports, engine.sync_reports = engine.sync_reports, []
        metrics |= sync_metrics(reports) | engine.take_counts()
        return metrics | {"reuse/kept": len(self._reuse), "reuse/outdated": outdated}
