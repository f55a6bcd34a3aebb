"""Several evaluations side by side: every metric of every set, and differences to one of them on the same
problems.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from bapo_lightning.evaluation.bootstrap import Estimate
from bapo_lightning.evaluation.outcome import Outcomes
from bapo_lightning.evaluation.results import paired_differences, set_estimates


@dataclass(frozen=True)
class Evaluated:
    """A finished evaluation."""

    name: str  # unique among those compared
    k: int
    problems: Mapping[str, Mapping[str, Outcomes]]  # set -> problem id -> its k samples
    digests: Mapping[
        str, str
    ]  # set -> digest of its problems: equal digests, equal problems in the same order
    settings: Mapping[str, object] = field(
        default_factory=dict
    )  # that another evaluation should share, e.g. temperature


@dataclass(frozen=True)
class ComparisonRow:
    """One evaluation of one set."""

    evaluation: str
    set_name: str
    num_problems: int
    k: int
    values: Mapping[str, Estimate]
    differences: Mapping[
        str, Estimate
    ]  # to the reference; empty for itself, and where the two cannot be paired


def compare(evaluations: Sequence[Evaluated], reference: str) -> list[ComparisonRow]:
    """A row for each set of each evaluation, set by set, in the order given."""
    against = next(item for item in evaluations if item.name == reference)
    rows = []
    for name in dict.fromkeys(name for item in evaluations for name in item.problems):
        for item in evaluations:
            if name in item.problems:
                problems = list(item.problems[name].values())
                is_pair = item is not against and pairing_problem(item, against, name) is None
                differences = (
                    paired_differences(problems, list(against.problems[name].values())) if is_pair else {}
                )
                rows.append(
                    ComparisonRow(
                        item.name, name, len(problems), item.k, set_estimates(problems), differences
                    )
                )
    return rows


def pairing_problem(item: Evaluated, reference: Evaluated, set_name: str) -> str | None:
    """Why two evaluations of a set cannot be paired; None when they can."""
    if set_name not in reference.problems:
        return "the reference has no such set"
    if item.digests[set_name] != reference.digests[set_name]:
        return "its problems are others"
    return f"it has k={item.k}, the reference k={reference.k}" if item.k != reference.k else None


def comparison_notes(evaluations: Sequence[Evaluated], reference: str) -> list[str]:
    """What a reader must know: what was not paired, and settings that differ from the reference's."""
    against = next(item for item in evaluations if item.name == reference)
    notes = []
    for item in evaluations:
        if item is against:
            continue
        for name in item.problems:
            if (reason := pairing_problem(item, against, name)) is not None:
                notes.append(f"{item.name}, {name}: no difference, {reason}")
        differing = [key for key in item.settings if item.settings[key] != against.settings.get(key)]
        if differing:
            changes = ", ".join(
                f"{key} {against.settings.get(key)} -> {item.settings[key]}" for key in differing
            )
            notes.append(f"{item.name} differs from {reference} in more than its weights: {changes}")
    return notes
