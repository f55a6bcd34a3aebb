"""Results of the runs, seed by seed, and verdicts on the claims."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from bapo_lightning.report.intervals import Interval
from bapo_lightning.report.paired import holm, paired_difference, paired_p_value, verdict_of
from studies.late.measure import SUMMARY, Measured
from studies.late.plan import LateClaim, LateConfig

Place = tuple[str, int]  # world and bound
Values = Mapping[str, np.ndarray]  # quantity -> [seeds]
Tables = Mapping[Place, Mapping[str, Values]]  # by rule


@dataclass(frozen=True)
class Judged:
    """A claim in one world."""

    claim: LateClaim
    world: str
    difference: Interval
    verdict: str

    @property
    def is_true(self) -> bool:
        return self.verdict == self.claim.expected


def values_of(measured: Mapping[str, Measured], throughput: float) -> dict[str, Values]:
    """The quantities of every rule in one place. Rewards over time end when the quickest rule ends, seed by
    seed, so that none is judged by updates that another one had no time for.
    """
    until = np.min([arrays["times"][:, -1] for arrays in measured.values()], 0)
    return {
        name: {
            **{key: arrays[key] for key in SUMMARY},
            "age": arrays["ages"].mean(1),
            "oldest": arrays["oldest"].max(1),
            "reward": arrays["rewards"].mean(1),
            "hardest": arrays["hard_rewards"].mean(1),
            "reward_at_time": np.array(
                [mean_until(*each) for each in zip(arrays["times"], arrays["rewards"], until, strict=True)]
            ),
            "pace": arrays["times"][:, -1] / (arrays["times"].shape[1] - 1) / throughput,
        }
        for name, arrays in measured.items()
    }


def mean_until(times: np.ndarray, rewards: np.ndarray, until: float) -> float:
    """Mean over time of a reward that changes at these times, [V] each, from the first one to `until`."""
    ends = np.minimum(np.append(times[1:], np.inf), until)
    return float(np.average(rewards, weights=np.maximum(ends - times, 0)))


def judge(config: LateConfig, tables: Tables) -> list[Judged]:
    """Judges every claim in each of its worlds; p-values are adjusted over all of them (Holm)."""
    compared = []
    for claim in config.claims:
        for world in claim.worlds:
            rules = tables[world, config.bound]
            one = dict(enumerate(rules[claim.rule][claim.quantity].tolist()))
            if isinstance(claim.against, str):
                other = dict(enumerate(rules[claim.against][claim.quantity].tolist()))
            else:
                other = dict.fromkeys(one, claim.against)
            compared.append((claim, world, one, other))
    adjusted = holm([paired_p_value(one, other) for *_, one, other in compared])
    judged = []
    for (claim, world, one, other), p_value in zip(compared, adjusted, strict=True):
        difference = paired_difference(one, other)
        assert difference is not None
        verdict = verdict_of(difference, p_value, config.matters[claim.quantity])
        judged.append(Judged(claim, world, difference, verdict))
    return judged
