"""Writes docs/results/matrix.md and rehearsals.md from what `make matrix` and `make rehearse` left.

python -m tests.matrix.page
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.matrix.choices import FACTORS
from tests.matrix.rows import FILE, subsets

PAGE = Path("docs/results/matrix.md")
RESULTS = Path("outputs/matrix")
ACTS = ("train and stop", "resume", "export", "evaluate the export")
HEAD = (
    "# Every pair of choices, run together\n\n"
    "`make matrix` leaves the results that `python -m tests.matrix.page` shows here.\n"
    "Continuous integration runs a twelfth of it, another one each day.\n\n"
    "Each row is a run of two small rollout batches in a tiny world, on a CPU.\n"
    "It samples, syncs weights and proves it, updates, validates, saves, is stopped by SIGTERM after its "
    "first update, and resumes to its end.\n"
    "A regime `async, recorded` follows the schedule of a run before it.\n"
    "The rows are a covering array: {covered} of {pairs} pairs of values occur in one of {rows} rows, "
    "and the rules refuse the other {refused} at the start.\n"
)
REHEARSALS, REHEARSED = Path("docs/results/rehearsals.md"), Path("outputs/rehearsal")
REHEARSALS_HEAD = (
    "# Experiments, rehearsed\n\n"
    "`make rehearse` leaves the results that `python -m tests.matrix.page` shows here ([rehearsal.md]"
    "(../rehearsal.md)).\n"
    "These ran on a CPU with two cores.\n\n"
    "| experiment | parts that ran | seconds | updates | largest mean difference after a sync | not here |\n"
    "|---|---|---|---|---|---|\n"
)


def page() -> str:
    """Returns the page. A row that was not run yet is shown as such."""
    matrix = json.loads(FILE.read_text())
    pairs = [key for key in subsets() if len(key) == 2]
    refused = [entry for entry in matrix["refused"] if len(entry["choices"]) == 2]
    counts = {"pairs": len(pairs), "refused": len(refused), "covered": len(pairs) - len(refused)}
    lines = [HEAD.format(rows=len(matrix["rows"]), **counts)]
    lines += [
        "## Rows",
        "",
        f"| | {' | '.join(FACTORS)} | ran | seconds |",
        "|---|" + "---|" * (len(FACTORS) + 2),
    ]
    lines += [_row(number, row) for number, row in enumerate(matrix["rows"], 1)]
    lines += ["", "## Refused", "", "| choices | reason |", "|---|---|"]
    lines += _refusals(matrix["refused"])
    return "\n".join(lines) + "\n"


def _row(number: int, row: dict[str, str]) -> str:
    file = RESULTS / str(number) / "rehearsal.json"
    cells = [str(number), *row.values(), *_outcome(json.loads(file.read_text()) if file.exists() else None)]
    return f"| {' | '.join(cells)} |"


def _outcome(record: dict[str, Any] | None) -> tuple[str, str]:
    if record is None:
        return "not yet", ""
    seconds = sum(part["seconds"] for part in record["parts"] if part["part"] in ACTS)
    failed = [part["part"] for part in record["parts"] if not part["ran"]]
    return (f"**no**: {failed[0]}" if failed else "yes"), f"{seconds:.0f}"


def _refusals(refused: list[dict[str, Any]]) -> Iterator[str]:
    """One line for all choices that are refused for the same reason."""
    by_reason: dict[str, list[str]] = {}
    for entry in refused:
        by_reason.setdefault(entry["reason"], []).append(" + ".join(entry["choices"].values()))
    for reason, choices in by_reason.items():
        yield f"| {'; '.join(choices)} | {reason} |"


def rehearsals() -> str:
    """Returns the page about the rehearsals of all experiments."""
    records = [json.loads(file.read_text()) for file in sorted(REHEARSED.glob("*/rehearsal.json"))]
    return REHEARSALS_HEAD + "".join(f"{_rehearsal(record)}\n" for record in records)


def _rehearsal(record: dict[str, Any]) -> str:
    parts = {part["part"]: part for part in record["parts"]}
    ran = sum(part["ran"] for part in parts.values())
    seconds = sum(part["seconds"] for name, part in parts.items() if name in ACTS)
    note = parts["weight sync"]["note"]
    nats = note.partition(", ")[2].removesuffix(" apart at most")
    lacking = "; ".join(record["not_here"]) or "nothing is left out"
    cells = [
        record["experiment"],
        f"{ran} of {len(parts)}",
        f"{seconds:.0f}",
        parts["updates"]["note"],
        nats,
        lacking,
    ]
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    REHEARSALS.write_text(rehearsals(), encoding="utf-8")
    print(f"{PAGE} and {REHEARSALS} are written")
