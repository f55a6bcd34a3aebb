"""Stages of a rollout batch on its way from the scheduler to the queue of minibatches.

    fresh groups -> stages of fresh groups -> past groups join -> stages of the whole batch -> ReplayQueue

The stages of an algorithm (`algorithm.stages`) come first, in the order of its file, then `ReferenceStage`
and `EntryStage`, if its objective or the correction needs them. A stage measures its own time as
`time/NAME_seconds`, which does not count as waiting. A stage with `state_dict` and `load_state_dict` is
resumed, by its name in the configuration.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

import torch

from bapo_lightning.data.rollouts.sampler import RolloutSampler
from bapo_lightning.objectives.advantages.reward_batch import BatchAdvantages, Remembers, RewardBatch
from bapo_lightning.objectives.divergence import mismatch
from bapo_lightning.rollout.weight_sync import ScoringWeightSource, VersionedPolicyOwner
from bapo_lightning.system.phases import phase
from bapo_lightning.types import Group, Sample

PROXIMAL = "proximal_logp"
# Columns of the token table, by the policy's name of the score.
COLUMNS = {"logp": PROXIMAL, "entropy": "entry_entropy", "mean_logp": "entry_mean_logp"}


@phase("recomputing log-probs")
def with_entry_scores(
    groups: Sequence[Group],
    policy: ScoringWeightSource,
    token_budget: int,
    version: int,
    names: Sequence[str] = ("logp",),
) -> tuple[list[Group], dict[str, float]]:
    """Adds the scores `names`, of `COLUMNS`, under the trainer's weights of `version`, with at most
    `token_budget` padded tokens at once. Log-probs are the denominator of decoupled PPO's ratio; samples of
    an expert get none, because the denominator of their ratio is 1. Returns the groups, and the metrics
    `mismatch/*` (over the batch's tokens of age 0; absent if there are none) and `time/proximal_seconds`.
    """
    start = time.perf_counter()
    others = [name for name in names if name != "logp"]
    rollouts = [sample.rollout for group in groups for sample in group.samples]
    scored_at_once = [rollout for rollout in rollouts if others or rollout.aging_segments]
    scores = iter(policy.response_scores(scored_at_once, token_budget, names))

    def scored_sample(sample: Sample) -> Sample:
        ages = bool(sample.rollout.aging_segments)
        if not others and not ages:
            return sample
        columns = dict(zip((COLUMNS[name] for name in names), next(scores), strict=True))
        if not ages:
            columns.pop(PROXIMAL, None)
        return replace(sample, scores={**sample.scores, **columns})

    scored = [replace(group, samples=tuple(map(scored_sample, group.samples))) for group in groups]
    measured = fresh_mismatch([sample for group in scored for sample in group.samples], version)
    return scored, measured | {"time/proximal_seconds": time.perf_counter() - start}


@phase("scoring with the first weights")
def with_reference_logprobs(
    groups: Sequence[Group], policy: ScoringWeightSource, token_budget: int
) -> tuple[list[Group], dict[str, float]]:
    """Adds log-probs under the run's first weights; returns the groups, and `time/reference_seconds`."""
    start = time.perf_counter()
    rollouts = [sample.rollout for group in groups for sample in group.samples]
    logprobs = iter(policy.reference_logprobs(rollouts, token_budget))

    def scored(sample: Sample) -> Sample:
        return replace(sample, scores={**sample.scores, "reference_logp": next(logprobs)})

    groups = [replace(group, samples=tuple(map(scored, group.samples))) for group in groups]
    return groups, {"time/reference_seconds": time.perf_counter() - start}


def fresh_mismatch(samples: Sequence[Sample], version: int) -> dict[str, float]:
    """Returns the metrics `mismatch/*` of engine and trainer over the tokens that policy `version` itself
    sampled: differences at older tokens are staleness, not disagreement.
    """
    proximal, behaviour = array("f"), array("f")
    for sample in samples:
        if not sample.rollout.is_sampled:
            continue
        first = 0
        for segment in sample.rollout.sampled_segments:
            end = first + len(segment.token_ids)
            if segment.version == version and PROXIMAL in sample.scores:
                proximal.extend(sample.scores[PROXIMAL][first:end])
                behaviour.extend(segment.logprobs)
            first = end
    if not proximal:
        return {}
    metrics = mismatch(*(torch.frombuffer(values, dtype=torch.float32) for values in (proximal, behaviour)))
    return {f"mismatch/{name}": float(value) for name, value in metrics.items()}


def with_batch_advantages(
    advantages: BatchAdvantages, groups: Sequence[Group], num_new: int, admits: Callable[[Group], bool]
) -> list[Group]:
    """Returns the equally large groups of a rollout batch with other advantages. The first `num_new` enter
    training for the first time. Groups that `admits` refuses only fill the batch and keep advantages of zero.
    """
    admitted = [index for index, group in enumerate(groups) if admits(group)]
    if not admitted:
        return list(groups)
    chosen = [groups[index] for index in admitted]
    parts = [group.reward_parts for group in chosen]
    values = advantages(
        RewardBatch(
            rewards=torch.tensor([group.rewards for group in chosen], dtype=torch.float32),
            lengths=torch.tensor([[sample.rollout.length for sample in group.samples] for group in chosen]),
            advantages=torch.tensor([group.advantages for group in chosen], dtype=torch.float32),
            problems=tuple(group.problem.id for group in chosen),
            is_new=tuple(index < num_new for index in admitted),
            parts=torch.tensor(parts, dtype=torch.float32) if all(parts) else None,
        )
    ).tolist()
    rows = dict(zip(admitted, values, strict=True))
    return [
        replace(group, advantages=tuple(rows[index])) if index in rows else group
        for index, group in enumerate(groups)
    ]


@dataclass
class EnteringBatch:
    """A rollout batch on its way to training, whose groups a stage may replace."""

    fresh: list[Group]  # enter training for the first time
    replayed: list[Group] = field(default_factory=list)  # from earlier batches, once they have joined

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
    """Parts of the trainer and of the data side that a stage may use."""

    owner: VersionedPolicyOwner
    policy: ScoringWeightSource  # of all ranks
    sampler: RolloutSampler
    refresh_engine: Callable[[], None]  # gives the engine the trainer's weights
    admits: Callable[[Group], bool]  # whether a group is trained on; others only fill a batch
    device: Callable[[], torch.device]  # of the trainer


class BatchStage(ABC):
    """A stage; see the module."""

    needs_whole_batch: ClassVar[bool] = False  # whether it runs after past groups have joined
    gives_advantages: ClassVar[Literal["to none", "to some", "to all"]] = "to none"  # samples of a batch

    @abstractmethod
    def __call__(self, batch: EnteringBatch, tools: StageTools) -> dict[str, float]:
        """Changes the batch; returns metrics."""


class BatchAdvantageStage(BatchStage):
    """Gives the whole batch its advantages, in place of advantages relative to the group."""

    needs_whole_batch = True
    gives_advantages = "to all"

    def __init__(self, advantages: BatchAdvantages) -> None:
        self.advantages = advantages

    def __call__(self, batch: EnteringBatch, tools: StageTools) -> dict[str, float]:
        """Changes the advantages of admitted groups."""
        batch.groups = with_batch_advantages(self.advantages, batch.groups, len(batch.fresh), tools.admits)
        return {}

    def state_dict(self) -> dict[str, Any]:
        """Returns the memory; empty if there is none."""
        return self.advantages.state_dict() if isinstance(self.advantages, Remembers) else {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores it."""
        if isinstance(self.advantages, Remembers):
            self.advantages.load_state_dict(state)


class ReferenceStage(BatchStage):
    """Scores samples under the run's first weights."""

    def __call__(self, batch: EnteringBatch, tools: StageTools) -> dict[str, float]:
        """Adds reference log-probs."""
        budget = tools.owner.micro_batch_tokens
        batch.fresh, metrics = with_reference_logprobs(batch.fresh, tools.policy, budget)
        return metrics


class EntryStage(BatchStage):
    """Scores samples under the trainer's weights at their entry into training."""

    needs_whole_batch = True

    def __init__(self, names: Sequence[str]) -> None:
        """`names`: scores, see `with_entry_scores`."""
        self._names = names

    def __call__(self, batch: EnteringBatch, tools: StageTools) -> dict[str, float]:
        """Adds the scores."""
        budget, version = tools.owner.micro_batch_tokens, tools.owner.policy_version
        batch.groups, metrics = with_entry_scores(batch.groups, tools.policy, budget, version, self._names)
        return metrics
