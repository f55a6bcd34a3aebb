"""Which past groups are worth keeping, and what they are worth when they are trained on again
(`algorithm.replay`). Without a rule, groups whose scores differ are kept, with the advantages that they had.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean, median, pstdev
from typing import Any

from bapo_lightning.data.rollouts.turn_rules import needs_turns, num_calling_turns
from bapo_lightning.data.run_facts import RunFacts
from bapo_lightning.types import Group
from bapo_lightning.values import Count, NonNegative, Positive


class ReplayRule(ABC):
    """Belongs to a `ReuseBuffer`, which limits ages, shares and repetitions by the regime."""

    capacity: Count | None  # samples kept, the newest; None: all that are young enough

    @staticmethod
    def run_problems(options: Mapping[str, Any], run: RunFacts) -> Iterator[str]:
        """Yields that there are no groups of earlier batches."""
        if not run.regime.reuse_share:
            yield (
                f" trains on groups of earlier batches, and regime={run.regime.name} keeps none; write "
                "regime=reuse, or the regime that bears the algorithm's name"
            )

    @property
    @abstractmethod
    def is_ready(self) -> bool:
        """Whether the next batch may hold groups of earlier ones."""

    @abstractmethod
    def kept(self, group: Group) -> Group | None:
        """Returns what is kept of a group that was just trained on for the first time, if anything."""

    @abstractmethod
    def valued(self, replayed: Sequence[Group], fresh: Sequence[Group]) -> list[Group]:
        """Returns the same groups with the advantages that they have in a batch beside `fresh` ones. Called
        for every batch, also where none is replayed.
        """

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """Returns what it remembers, as primitives."""

    @abstractmethod
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores a state."""


@dataclass(eq=False)
class SelfImitation(ReplayRule):
    """Replays the policy's own successes, as SPEAR does (arXiv 2509.22601).

    Samples with A > `above` that are trained on are kept; with `needs_call` only those that called a tool, as
    in the authors' runs with tools. Their advantage becomes R - b, where b is the median of the last
    `window` group means of the reward, and 0 where that is negative; their weight rises as
    (1 - cos(pi t / ramp)) / 2 over `ramp` rollout batches. Which of them enter a batch, and how old they may
    be, is the regime's (regime=spear). The authors' code waits until 1.5 x `capacity` of them are there,
    makes updates on a random part of them and begins anew; here each batch takes its share. Their scripts
    take a ramp of 100 to 300.
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
        """Yields that nothing is kept, or that nothing is called."""
        yield from ReplayRule.run_problems(options, run)
        if options["needs_call"]:
            yield from needs_turns("needs_call", run)

    @property
    def is_ready(self) -> bool:
        """True once there is a baseline."""
        return bool(self._means)

    def kept(self, group: Group) -> Group | None:
        """Returns the group's successes, which the policy itself sampled."""
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
        """See the class; the baseline is that of the batches before."""
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


@dataclass(eq=False)
class ProgressReplay(ReplayRule):
    """Trains once more on the batch before, forwards after progress and backwards after a loss, as PIPO does
    (arXiv 2604.00860).

    Advantages are multiplied by phi(xi), where xi = (mu_t - mean(mu)) / std(mu) compares the mean reward of
    this batch with those of the `window` batches before it; phi(xi) is xi, times `damping` where that is
    negative. The regime's `reuse_minibatches=before` makes these updates before those on the batch itself
    (regime=pipo). In the authors' code the history holds the present batch and all others twice, and
    advantages are divided by their mean magnitude in the group (`by_magnitude`).
    """

    window: Count = 8
    damping: NonNegative = 0.1
    by_magnitude: bool = False
    limit: Positive = 10.0  # of advantages, as in the authors' code: the standard deviation may be tiny
    _means: deque[float] = field(init=False)
    capacity: Count | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self._means = deque(maxlen=self.window)

    @property
    def is_ready(self) -> bool:
        """True once the history is whole."""
        return len(self._means) == self.window

    def kept(self, group: Group) -> Group | None:
        """Returns a group whose advantages are not all zero."""
        return group if any(group.advantages) else None

    def valued(self, replayed: Sequence[Group], fresh: Sequence[Group]) -> list[Group]:
        """See the class."""
        mean = fmean(reward for group in fresh for reward in group.rewards)
        factor = self._factor(mean) if replayed else 0.0
        self._means.append(mean)
        return [replace(group, advantages=self._scaled(group.advantages, factor)) for group in replayed]

    def _factor(self, mean: float) -> float:
        """Returns phi(xi)."""
        progress = (mean - fmean(self._means)) / (pstdev(self._means) or 1.0)
        return progress if progress >= 0 else self.damping * progress

    def _scaled(self, advantages: Sequence[float], factor: float) -> tuple[float, ...]:
        unit = fmean(map(abs, advantages)) if self.by_magnitude else 1.0
        return tuple(max(-self.limit, min(value / unit * factor, self.limit)) for value in advantages)

    def state_dict(self) -> dict[str, Any]:
        """Returns the mean rewards."""
        return {"means": list(self._means)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores a state."""
        self._means = deque(state["means"], maxlen=self.window)
