"""Which groups are trained on: all of them, or DAPO's dynamic sampling (arXiv 2503.14476, section 3.2)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from bapo_lightning.data.rollout_sampler import SamplingStatistics
from bapo_lightning.types import Group

SampleGroups = Callable[[int], list[Group]]  # number of fresh problems -> their scored groups


@dataclass(frozen=True, slots=True)
class AdmitAll:
    """Every sampled group is trained on, also those that carry no signal."""

    def collect(self, num_groups: int, sample: SampleGroups, statistics: SamplingStatistics) -> list[Group]:
        """Exactly `num_groups` groups."""
        groups = sample(num_groups)
        statistics.num_uniform_groups += sum(group.is_uniform for group in groups)
        return groups


@dataclass(frozen=True, slots=True)
class DynamicSampling:
    """Groups whose scores are all equal are replaced by fresh ones, for at most `max_rounds` rounds of generation.

    When the rounds are used up the batch is filled with uniform groups, so that its size never changes; their advantages are zero.
    """

    max_rounds: int

    def collect(self, num_groups: int, sample: SampleGroups, statistics: SamplingStatistics) -> list[Group]:
        """Exactly `num_groups` groups, as few of them uniform as the rounds allow."""
        mixed: list[Group] = []
        uniform: list[Group] = []
        for _ in range(self.max_rounds):
            fresh = sample(num_groups - len(mixed))
            uniform += [group for group in fresh if group.is_uniform]
            mixed += [group for group in fresh if not group.is_uniform]
            if len(mixed) == num_groups:
                break
        filled = uniform[: num_groups - len(mixed)]
        statistics.num_uniform_groups += len(uniform)
        statistics.num_dropped_groups += len(uniform) - len(filled)
        return mixed + filled
