"""The claims of the atlas, judged start by start, and which method is nearest to the truth."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from bapo_lightning.report.intervals import Interval
from bapo_lightning.report.paired import MORE, holm, paired_difference, paired_p_value, verdict_of
from studies.bias.measure import Table
from studies.bias.plan import OTHERS, AtlasClaim, AtlasConfig, Place

Tables = Mapping[Place, Mapping[str, Table]]


@dataclass(frozen=True)
class Judged:
    """A claim at one age, and for an error at one batch size."""

    claim: AtlasClaim
    age: int
    batch: int | None
    against: str  # a method or a number
    difference: Interval
    verdict: str

    @property
    def is_true(self) -> bool:
        if self.claim.expected == "not more":
            return self.verdict != MORE
        return self.verdict == self.claim.expected


@dataclass(frozen=True)
class Nearest:
    """The method of the least error at one age and batch size."""

    age: int
    batch: int
    method: str
    error: float  # mean over starts
    as_good: int  # other methods whose mean is within what matters


def judge(config: AtlasConfig, tables: Tables) -> list[Judged]:
    """Judges every claim in each of its cells; p-values are adjusted over all of them (Holm)."""
    compared = []
    for claim in config.claims:
        methods = tables[config.place_of(claim)]
        for age in claim.ages:
            for batch in (*claim.batches,) or (None,):
                against = claim.against
                if against == OTHERS:
                    against = nearest_of(config, methods, age, batch, without=claim.method)[0]
                one = _values(config, methods, claim, claim.method, age, batch)
                other = (
                    _values(config, methods, claim, against, age, batch)
                    if isinstance(against, str)
                    else dict.fromkeys(one, float(against))
                )
                compared.append((claim, age, batch, str(against), one, other))
    adjusted = holm([paired_p_value(one, other) for *_, one, other in compared])
    judged = []
    for (claim, age, batch, against, one, other), p_value in zip(compared, adjusted, strict=True):
        difference = paired_difference(one, other)
        assert difference is not None
        verdict = verdict_of(difference, p_value, config.matters)
        judged.append(Judged(claim, age, batch, against, difference, verdict))
    return judged


def _values(
    config: AtlasConfig, table: Mapping[str, Table], claim: AtlasClaim, name: str, age: int, batch: int | None
) -> dict[int, float]:
    """By start."""
    values = table[name][claim.quantity][config.ages.index(age)]
    return dict(enumerate(map(float, values if batch is None else values[config.batches.index(batch)])))


def nearest_of(
    config: AtlasConfig, methods: Mapping[str, Table], age: int, batch: int | None, without: str | None = None
) -> tuple[str, dict[str, float]]:
    """The method of the least mean error, or of the largest mean cosine without a batch; and all means."""
    quantity, sign = ("cosine", -1) if batch is None else ("error", 1)
    means = {}
    for name in config.methods:
        if name != without:
            values = methods[name][quantity][config.ages.index(age)]
            values = values if batch is None else values[config.batches.index(batch)]
            means[name] = sign * float(np.mean(values))
    return min(means, key=means.__getitem__), means


def map_of_nearest(config: AtlasConfig, methods: Mapping[str, Table]) -> list[Nearest]:
    """For every age but 0, where all scales are measured, and every batch size."""
    entries = []
    for age in config.ages[1:]:
        for batch in config.batches:
            name, means = nearest_of(config, methods, age, batch)
            within = sum(value <= means[name] + config.matters for value in means.values())
            entries.append(Nearest(age, batch, name, means[name], within - 1))
    return entries
