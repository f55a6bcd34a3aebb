"""Generation during training as a state without threads and clocks: rules for which side may act when.

    generation                                      trainer, between two updates
    ----------                                      ----------------------------
    may_begin: work, and weights as new as   <----  serve_weights: push those that the next pass needs
               the trainer's
    begin -> sampled -> scored               ---->  has_batch, take
                                                    held: no pass may begin (validation)

A pass of a stream is some decoding steps; it ends with `sampled`, and scoring overlaps with the next ones.

`AsyncCollector` drives it with two threads, a simulation in virtual time. The caller holds
the scheduler's lock and notifies the other side of changes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from bapo_lightning.data.rollouts.collector import TrainerState
from bapo_lightning.data.rollouts.running_group import RunningGroup, SampledPass
from bapo_lightning.data.rollouts.scheduler import RolloutScheduler
from bapo_lightning.rollout.engine import GenerationRequest
from bapo_lightning.types import Group


@dataclass(eq=False)
class AsyncProtocol:
    """Rules for generation and training that run at the same time."""

    scheduler: RolloutScheduler
    refresh_engine: Callable[[], None]  # gives the engine the trainer's current weights
    needed: int  # groups in a batch
    trainer: TrainerState = field(default=TrainerState(0, 0), init=False)  # at its last visit
    in_pass: bool = field(default=False, init=False)  # from `begin` to `scored` or, in a stream, to `sampled`
    held: bool = field(default=False, init=False)  # no pass may begin: the trainer uses the engine
    wants_weights: bool = field(default=False, init=False)  # generation waits only for weights

    def visit(self, state: TrainerState) -> None:
        """Notes the trainer's progress, which may make room."""
        self.trainer = state
        self.scheduler.note("visit", clock=state.clock, version=state.version)

    def may_begin(self) -> bool:
        """Whether there is work and the engine has the trainer's weights; requests them if it has not."""
        if self.held or not self.scheduler.has_work(self.trainer.clock, self.needed):
            return False
        if self.scheduler.sampler.engine.version == self.trainer.version:
            return True
        self.wants_weights = True
        return False

    def serve_weights(self) -> None:
        """Hands over the weights that the next pass needs, even before generation requests them: it notices
        the room that this visit makes only after the visit, and would get its weights an update later.
        """
        if not self.in_pass:
            self.may_begin()  # requests them for generation
        if self.wants_weights and self.scheduler.sampler.engine.version != self.trainer.version:
            self.scheduler.note("sync")
            self.refresh_engine()
        self.wants_weights = False

    def begin(self) -> list[GenerationRequest]:
        """Begins a pass; call `may_begin` first."""
        self.in_pass = True
        return self.scheduler.schedule(self.trainer.clock, self.needed, self.trainer.version)

    def sampled(self, sampled: SampledPass) -> tuple[list[RunningGroup], int]:
        """Stores the samples of a pass. Returns complete groups, and the version to score them with."""
        self.in_pass = not self.scheduler.regime.is_stream
        return self.scheduler.postprocess(sampled), self.trainer.version

    def scored(self, finished: Sequence[RunningGroup], groups: Sequence[Group], seconds: float) -> None:
        """Moves the `finished` groups of `sampled`, scored as `groups`, to the next stage; ends the pass."""
        self.scheduler.add_scored(finished, groups, seconds)
        self.in_pass = False

    def has_batch(self, needed: int) -> bool:
        """Whether `needed` groups can enter training now; serves weights, so that a wait for groups ends."""
        self.serve_weights()
        self.scheduler.drop_late(self.trainer.version)
        return self.scheduler.has_batch(needed)

    def take(self, needed: int) -> list[Group]:
        """Returns the next batch; call `has_batch` first."""
        batch = self.scheduler.take_batch(needed, self.trainer.version)
        # taking the batch made room: generation continues during the very next update
        self.serve_weights()
        return batch
