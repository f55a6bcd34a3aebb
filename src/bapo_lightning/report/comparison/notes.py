"""What limits a comparison, in sentences for people, and counts of what went wrong in a run."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from bapo_lightning.report.comparison.mean_curve import MeanCurve
from bapo_lightning.report.comparison.quantities import QUANTITIES
from bapo_lightning.report.comparison.runs import Run
from bapo_lightning.run_folder.config_keys import leaves, should_be_alike

Cells = Mapping[tuple[str, str], Sequence[Run]]  # (setting, condition) -> its runs


def unlike_runs(usable: Sequence[Run], conditions: Sequence[str]) -> list[str]:
    """Notes on runs under one condition that are not alike where they should be."""
    notes = []
    named = {key for run in usable for key in run.setting_keys}
    for condition in conditions:
        peers = [run for run in usable if run.condition == condition]
        where = f"staleness {condition}: the runs"
        if parts := _differing_parts(peers, named):
            notes.append(f"{where} differ in more than the algorithm: {', '.join(parts)}")
        if _differing(updates := [run.summary["updates"] for run in peers]):
            notes.append(f"{where} have different numbers of updates: {min(updates)} to {max(updates)}")
    return notes


def limits(cells: Cells, curves: Mapping[tuple[str, str, str], MeanCurve]) -> list[str]:
    """Notes on cells with one seed only, curves that end early, and metrics that some runs lack."""
    notes = []
    for (setting, condition), cell in cells.items():
        where = f"{setting} at staleness {condition}"
        if len(cell) == 1:
            notes.append(f"{where}: one seed only, so there is neither an interval nor a test")
        shortest, longest = curves[setting, condition, "train/reward"].last_recorded
        if shortest != longest:
            notes.append(
                f"{where}: curves end at update {shortest}, with the shortest of its runs; the longest goes "
                f"on to {longest}"
            )
        for quantity in QUANTITIES:
            lacking = [run.seed for run in cell if not run.curves[quantity.metric][1]]
            if lacking:
                runs = "any run" if len(lacking) == len(cell) else f"seeds {lacking}"
                notes.append(f"{where}: {quantity.title} was not recorded by {runs}")
    return notes


def damage(run: Run) -> dict[str, int]:
    """Counts of what went wrong in a run or was dropped, zeros left out."""
    irregular = ("skipped_updates", "non_finite_values", "unreadable_lines", "rolled_back_rows")
    counts = {**run.summary["drops"], **{name: run.summary[name] for name in irregular}}
    counts["resumes"] = len(run.manifest.get("resumes", []))
    return {name.replace("_", " "): count for name, count in counts.items() if count}


def _differing_parts(peers: Sequence[Run], named: set[str]) -> list[str]:
    """Parts of the configuration in which runs differ, apart from the keys that their settings name."""
    tables = [dict(leaves(run.config)) for run in peers]
    keys = {key for table in tables for key in table if key not in named and should_be_alike(key)}
    columns = {key: [table.get(key) for table in tables] for key in keys}
    seeds = [run.seed for run in peers]
    return sorted(
        {key.partition(".")[0] for key, values in columns.items() if _differing(values) and values != seeds}
    )


def _differing(values: Sequence[object]) -> bool:
    return len({json.dumps(value, sort_keys=True, default=str) for value in values}) > 1
