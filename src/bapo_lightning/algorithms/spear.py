"""SPEAR: lets the policy imitate its own earlier successes (arXiv 2509.22601)."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean, median
from typing import Any

from torch import Tensor

from bapo_lightning.data.rollouts.replay_rule import ReplayRule
from bapo_lightning.data.rollouts.turn_rules import TurnShaping, needs_turns
from bapo_lightning.data.run_facts import RunFacts
from bapo_lightning.objectives.objective import clip
from bapo_lightning.objectives.picks import ORDERED_BY, first_of, random_order, unclipped_between
from bapo_lightning.objectives.surrogate import DualClip
from bapo_lightning.objectives.token_table import TokenTable, reads
from bapo_lightning.system.values import Count, NonNegative, Positive, PositiveFactor, Share
from bapo_lightning.types import Group, Origin, Rollout

KEPT = "kept"


@dataclass(frozen=True)
class SPEAR:
    """min(r A, clip(r, low, high) A) per token, [N], and 0 for tokens that are left out of the update:
    Clip-Cov (arXiv 2505.22617), with other limits for replayed tokens.

    A share (at least one) of the fresh tokens, and of the replayed tokens, is left out. They are drawn from
    unclipped tokens whose covariance (A - mean A)(log pi - mean log pi) lies between the limits; means are
    over the tokens of their kind. The draw does not depend on the split into micro-batches. Share and limits
    for replayed tokens are from the authors' runs on mathematics (2 and 60 on ALFWorld and WebShop).
    """

    fresh_share: Share = 2e-4
    fresh_low: Positive = 1.0
    fresh_high: Positive = 5.0
    replay_share: Share = 0.02
    replay_low: Positive = 1.0
    replay_high: Positive = 40.0
    dual_clip: DualClip | None = None

    @reads(*ORDERED_BY, "origin", "count", "logp", "advantage", "ratio", "low", "high")
    def prepare(self, table: TokenTable) -> dict[str, Tensor]:
        """Returns 0 for the tokens that are left out, and 1 for all others, [N]."""
        replayed, order = table.origin == Origin.REPLAYED, random_order(table)

        def dropped(kind: Tensor, share: float, low: float, high: float) -> Tensor:
            count = table.count * kind
            candidates = table.is_sampled & unclipped_between(table, count, low, high)
            return first_of(order, candidates, share, count)

        fresh = dropped(~replayed, self.fresh_share, self.fresh_low, self.fresh_high)
        return {KEPT: 1 - fresh - dropped(replayed, self.replay_share, self.replay_low, self.replay_high)}

    def __call__(self, table: TokenTable) -> Tensor:
        """Returns the objective of each token, [N]."""
        return table[KEPT] * clip(table, self.dual_clip)


@dataclass(eq=False)
class SelfImitation(ReplayRule):
    """Replays the policy's own successes, as SPEAR does (arXiv 2509.22601).

    Trained samples with A > `above` are kept; with `needs_call` only samples that called a tool, as in the
    authors' runs with tools. Their advantage becomes R - b, where b is the median of the last `window` group
    means of the reward, or 0 if that is negative; their weight rises as (1 - cos(pi t / ramp)) / 2 over
    `ramp` rollout batches. The regime decides which of them enter a batch, and how old they may be
    (regime=spear). The authors' code waits until 1.5 x `capacity` samples have been kept, makes updates on a
    random part of them and starts again; here each batch takes its share. Their scripts use a ramp of 100 to
    300.
    """

    above: NonNegative = 0.0
    capacity: Count | None = 2048
    window: Count = 10_240
    ramp: Count = 200
    needs_call: bool = False
    _means: deque[float] = field(init=False)
    _batches: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self._means = deque(maxlen=self.window)

    @staticmethod
    def run_problems(options: Mapping[str, Any], run: RunFacts) -> Iterator[str]:
        """Yields a message if nothing is kept, or if there are no calls."""
        yield from ReplayRule.run_problems(options, run)
        if options["needs_call"]:
            yield from needs_turns("needs_call", run)

    @property
    def is_ready(self) -> bool:
        """True once there is a baseline."""
        return bool(self._means)

    def kept(self, group: Group) -> Group | None:
        """Returns the group's successes that the policy itself sampled."""
        pairs = [
            (sample, advantage)
            for sample, advantage in zip(group.samples, group.advantages, strict=True)
            if advantage > self.above and sample.is_trained and sample.rollout.is_sampled
            if not self.needs_call or num_calling_turns(sample.rollout)
        ]
        if not pairs:
            return None
        samples, advantages = zip(*pairs, strict=True)
        return replace(group, samples=samples, advantages=advantages)

    def valued(self, replayed: Sequence[Group], fresh: Sequence[Group]) -> list[Group]:
        """See the class; the baseline comes from earlier batches."""
        self._batches += 1
        baseline = median(self._means) if self._means else 0.0
        weight = (1 - math.cos(math.pi * min(self._batches / self.ramp, 1.0))) / 2
        self._means += [fmean(group.rewards) for group in fresh]
        return [
            replace(
                group,
                advantages=tuple(max(reward - baseline, 0.0) for reward in group.rewards),
                weight=weight,
            )
            for group in replayed
        ]

    def state_dict(self) -> dict[str, Any]:
        """Returns the means and the number of batches."""
        return {"means": list(self._means), "batches": self._batches}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores a state."""
        self._means, self._batches = deque(state["means"], maxlen=self.window), state["batches"]


@dataclass(frozen=True)
class ToolCallReward(TurnShaping):
    """Reward for calling tools, in right and wrong answers. After t updates it is

    mu(t) * min(most, per_call * turns that called a tool),    mu(t) = (1 + cos(pi t / decay_updates)) / 2,

    and 0 from `decay_updates` on. Failed calls count. The defaults are the authors', whose right and wrong
    answers have rewards of 1 and -1: if these are 1 and 0, half of `per_call` and `most` weighs as much.
    """

    per_call: PositiveFactor = 0.1
    most: Positive = 1.0
    decay_updates: Count = 200

    def shape(self, rollout: Rollout, version: int) -> float:
        """Returns the reward at policy `version`, in [0, most]."""
        if version >= self.decay_updates:
            return 0.0
        left = (1 + math.cos(math.pi * version / self.decay_updates)) / 2
        return left * min(self.most, self.per_call * num_calling_turns(rollout))


def num_calling_turns(rollout: Rollout) -> int:
    """Returns the number of turns in which the policy called a tool."""
    return sum(reply.calls > 0 for reply in rollout.replies)
