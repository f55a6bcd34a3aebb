"""Evaluations side by side: every metric of every set, and differences from one of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from bapo_lightning.objectives.outcome import Outcomes
from bapo_lightning.tools.evaluation.results import Estimate, paired_differences, set_estimates


@dataclass(frozen=True)
class Evaluated:
    """A finished evaluation."""

    name: str  # unique among those compared
    k: int  # samples per problem
    problems: Mapping[str, Mapping[str, Outcomes]]  # set -> problem id -> its k samples
    digests: Mapping[str, str]  # set -> digest; equal digests mean the same problems in the same order
    settings: Mapping[str, object] = field(default_factory=dict)  # to be shared, e.g. temperature


@dataclass(frozen=True)
class ComparisonRow:
    """One evaluation of one set."""

    evaluation: str
    set_name: str
    num_problems: int
    k: int
    values: Mapping[str, Estimate]
    # from the reference; empty for the reference itself and if pairing is impossible
    differences: Mapping[str, Estimate]


def compare_evaluations(evaluations: Sequence[Evaluated], reference: str) -> list[ComparisonRow]:
    """Returns a row for each set of each evaluation, set by set, evaluations in the order given."""
    against = next(item for item in evaluations if item.name == reference)
    set_names = dict.fromkeys(name for item in evaluations for name in item.problems)
    return [
        ComparisonRow(
            item.name,
            name,
            len(item.problems[name]),
            item.k,
            set_estimates(list(item.problems[name].values())),
            _differences(item, against, name),
        )
        for name in set_names
        for item in evaluations
        if name in item.problems
    ]


def pairing_problem(item: Evaluated, reference: Evaluated, set_name: str) -> str | None:
    """Returns why two evaluations of a set cannot be paired; None if they can."""
    if set_name not in reference.problems:
        return "the reference has no such set"
    if item.digests[set_name] != reference.digests[set_name]:
        return "its problems are others"
    return f"it has k={item.k}, the reference k={reference.k}" if item.k != reference.k else None


def comparison_notes(evaluations: Sequence[Evaluated], reference: str) -> list[str]:
    """Returns the sets that were not paired, and the settings that differ from the reference's."""
    against = next(item for item in evaluations if item.name == reference)
    notes = []
    for item in evaluations:
        for name in item.problems:
            if (reason := pairing_problem(item, against, name)) is not None:
                notes.append(f"{item.name}, {name}: no difference, {reason}")
        before = against.settings
        changes = {key: value for key, value in item.settings.items() if value != before.get(key)}
        if changes:
            listed = ", ".join(f"{key} {before.get(key)} -> {value}" for key, value in changes.items())
            notes.append(f"{item.name} differs from {reference} in more than its weights: {listed}")
    return notes


def _differences(item: Evaluated, against: Evaluated, set_name: str) -> dict[str, Estimate]:
    if item is against or pairing_problem(item, against, set_name) is not None:
        return {}
    problems, others = (list(each.problems[set_name].values()) for each in (item, against))
    return paired_differences(problems, others)
