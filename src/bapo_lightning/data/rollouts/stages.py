"""Stages of a rollout batch on its way from the scheduler to the queue of minibatches.

    fresh groups -> stages of fresh groups -> past groups join -> stages of the whole batch -> ReplayQueue

    SecondSamplingStage   answers of a second sampling take the place of some
    ReferenceStage        log-probs under the weights that the run began with
    StepAdvantageStage    a critic's advantage for each step
    BatchAdvantageStage   advantages that depend on the whole batch
    EntryStage            scores by the trainer's weights

A stage measures its own time as `time/NAME_seconds`, which does not count as waiting.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol, runtime_checkable

import torch

from bapo_lightning.data.owner import VersionedPolicyOwner
from bapo_lightning.data.rollouts.batch_advantages import with_batch_advantages
from bapo_lightning.data.rollouts.proximal import with_entry_scores, with_reference_logprobs
from bapo_lightning.data.rollouts.sampler import RolloutSampler
from bapo_lightning.data.rollouts.second_sampling import SecondSampling
from bapo_lightning.data.rollouts.steps import Critic, with_step_advantages
from bapo_lightning.objectives.advantages.reward_batch import BatchAdvantages, Remembers
from bapo_lightning.rollout.weight_sync import ScoringWeightSource
from bapo_lightning.types import Group


@dataclass
class EnteringBatch:
    """A rollout batch on its way to training. A stage puts other groups in the place of these."""

    fresh: list[Group]  # enter training for the first time
    replayed: list[Group] = field(default_factory=list)  # of earlier batches, once they have joined

    @property
    def groups(self) -> list[Group]:
        """All groups, fresh ones first."""
        return [*self.fresh, *self.replayed]

    @groups.setter
    def groups(self, groups: list[Group]) -> None:
        count = len(self.fresh)
        self.fresh, self.replayed = groups[:count], groups[count:]


@dataclass(frozen=True)
class StageTools:
    """What a stage may use of the trainer and of the data side."""

    owner: VersionedPolicyOwner
    policy: ScoringWeightSource  # that of all ranks
    sampler: RolloutSampler
    refresh_engine: Callable[[], None]  # gives it the trainer's weights
    admits: Callable[[Group], bool]  # whether a group is trained on; others fill up a batch
    device: Callable[[], torch.device]  # of the trainer


class BatchStage(Protocol):
    """One stage."""

    needs_whole_batch: ClassVar[bool]  # whether it comes after past groups have joined

    def __call__(self, batch: EnteringBatch, tools: StageTools) -> dict[str, float]:
        """Changes the batch; returns metrics."""
        ...


@runtime_checkable
class Resumes(Protocol):
    """A stage with a state, which checkpoints hold under its name."""

    name: ClassVar[str]

    def state_dict(self) -> dict[str, Any] | None:
        """Returns the state in primitives and tensors; None if there is none."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores it."""
        ...


@dataclass(frozen=True)
class SecondSamplingStage:
    """Samples some prompts again, at another temperature."""

    needs_whole_batch: ClassVar[bool] = False
    sampling: SecondSampling

    def __call__(self, batch: EnteringBatch, tools: StageTools) -> dict[str, float]:
        """Puts answers of the second sampling in the place of others."""
        tools.refresh_engine()
        entropy, version = float(tools.owner.last_entropy), tools.owner.policy_version
        batch.fresh, metrics = self.sampling(tools.sampler, batch.fresh, entropy, version)
        tools.sampler.engine.sleep()
        return metrics


@dataclass(frozen=True)
class ReferenceStage:
    """Scores samples by the weights that the run began with."""

    needs_whole_batch: ClassVar[bool] = False

    def __call__(self, batch: EnteringBatch, tools: StageTools) -> dict[str, float]:
        """Adds reference log-probs."""
        budget = tools.owner.micro_batch_tokens
        batch.fresh, metrics = with_reference_logprobs(batch.fresh, tools.policy, budget)
        return metrics


@dataclass(frozen=True)
class StepAdvantageStage:
    """Lets a critic give each step its advantage, in place of those relative to the group."""

    needs_whole_batch: ClassVar[bool] = False
    critic: Critic

    def __call__(self, batch: EnteringBatch, tools: StageTools) -> dict[str, float]:
        """Adds steps, and gives samples the sum of their advantages."""
        budget, tokenizer = tools.owner.micro_batch_tokens, tools.sampler.tokenizer
        batch.fresh, metrics = with_step_advantages(
            self.critic, batch.fresh, tokenizer, tools.admits, budget, tools.device()
        )
        return metrics


@dataclass(frozen=True)
class BatchAdvantageStage:
    """Gives the whole batch its advantages, in place of those relative to the group."""

    needs_whole_batch: ClassVar[bool] = True
    name: ClassVar[str] = "batch_advantages"
    advantages: BatchAdvantages

    def __call__(self, batch: EnteringBatch, tools: StageTools) -> dict[str, float]:
        """Changes the advantages of admitted groups."""
        batch.groups = with_batch_advantages(self.advantages, batch.groups, len(batch.fresh), tools.admits)
        return {}

    def state_dict(self) -> dict[str, Any] | None:
        """See `Resumes`."""
        return self.advantages.state_dict() if isinstance(self.advantages, Remembers) else None

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """See `Resumes`."""
        if isinstance(self.advantages, Remembers):
            self.advantages.load_state_dict(state)


@dataclass(frozen=True)
class EntryStage:
    """Scores samples by the trainer's weights, which they enter training with."""

    needs_whole_batch: ClassVar[bool] = True
    names: Sequence[str]  # see `with_entry_scores`

    def __call__(self, batch: EnteringBatch, tools: StageTools) -> dict[str, float]:
        """Adds the scores."""
        budget, version = tools.owner.micro_batch_tokens, tools.owner.policy_version
        batch.groups, metrics = with_entry_scores(batch.groups, tools.policy, budget, version, self.names)
        return metrics
