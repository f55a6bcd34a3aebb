"""Verdicts on the orderings that the paper asserts: do they hold over the seeds here?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from bapo_lightning.report.figures.catalogue import Claim
from bapo_lightning.report.intervals import Interval, holm, mean_interval, paired_difference, paired_p_value

Table = Mapping[str, Mapping[str, Mapping[int, float]]]  # variant -> value's name -> seed -> value
HOLDS, OPPOSITE, OPEN, NO_DATA = "holds", "the opposite holds", "not shown", "no data"


@dataclass(frozen=True)
class Verdict:
    """Result of judging a claim on the runs."""

    figure: str
    claim: Claim
    interval: Interval | None  # 95 %, of the difference in the claimed direction: positive agrees
    verdict: str
    p_value: float | None  # two-sided t-test, paired by seed where two variants are compared
    adjusted: float | None = None  # by Holm over all claims that were judged together


def judge(figure: str, claim: Claim, table: Table) -> Verdict:
    """Judges a claim: `holds` or `the opposite holds` when the 95 % interval lies wholly on that side of
    zero, else `not shown`.
    """
    if claim.of is None:
        more, less = (
            table.get(variant or "", {}).get(claim.value, {}) for variant in (claim.more, claim.less)
        )
        interval, p_value = paired_difference(more, less), paired_p_value(more, less)
    else:
        found = table.get(claim.of, {}).get(claim.value, {})
        sign, level = (1.0, claim.above) if claim.above is not None else (-1.0, claim.below or 0.0)
        values = {seed: sign * (value - level) for seed, value in found.items()}
        interval, p_value = (
            mean_interval(list(values.values())),
            paired_p_value(values, dict.fromkeys(values, 0.0)),
        )
    if interval is None or interval.half_width is None:
        return Verdict(figure, claim, interval, NO_DATA, None)
    verdict = OPEN if not interval.excludes_zero else HOLDS if interval.mean > 0 else OPPOSITE
    return Verdict(figure, claim, interval, verdict, p_value)


def adjust(verdicts: Sequence[Verdict]) -> list[Verdict]:
    """Adds p-values adjusted by Holm's method over all verdicts."""
    adjusted = holm([verdict.p_value for verdict in verdicts])
    return [replace(verdict, adjusted=p_value) for verdict, p_value in zip(verdicts, adjusted, strict=True)]
