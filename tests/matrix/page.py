"""Writes docs/results/matrix.md with its table and rehearsals.md from what their commands left, if anything.

python -m tests.matrix.page
"""

from __future__ import annotations

import csv
import json
from collections import Counter
from pathlib import Path
from typing import Any

from tests.matrix.choices import FACTORS
from tests.matrix.rows import FILE, subsets

from bapo_lightning.report.markdown import markdown_table
from bapo_lightning.system.run_folder.text_file import write_csv

PAGE = Path("docs/results/matrix.md")
RESULTS = Path("outputs/matrix")
ACTS = ("train and stop", "resume", "export", "evaluate the export")
HEAD = (
    "# Every pair of choices, run together\n\n"
    "`make matrix` leaves the results from which `python -m tests.matrix.page` writes this page and "
    "[matrix.csv](matrix.csv), which has the choices, outcome and seconds of each row.\n"
    "Continuous integration runs a different twelfth of the rows for each commit.\n\n"
    "Each row is a run of two small rollout batches in a tiny world, on a CPU.\n"
    "It samples, syncs weights and proves the sync, updates, validates, saves, is stopped by SIGTERM after "
    "its first update, and resumes to its end.\n"
    "A regime `async, recorded` or `stream, recorded` follows the schedule of an earlier run.\n"
    "The rows are a covering array: {covered} of {pairs} pairs of values occur in one of {rows} rows, "
    "and the rules refuse the other {refused} at the start.\n"
    "{ran} of {rows} rows ran to their end, in {fastest} to {slowest} seconds each.\n"
)
REHEARSALS, REHEARSED = Path("docs/results/rehearsals.md"), Path("outputs/rehearsal")
REHEARSED_HEADS = [
    "experiment",
    "parts that ran",
    "seconds",
    "updates",
    "largest mean difference after a sync",
]
REHEARSALS_HEAD = (
    "# Experiments, rehearsed\n\n"
    "`make rehearse` ([rehearsal.md](../rehearsal.md)) leaves the results from which "
    "`python -m tests.matrix.page` writes this page.\n"
    "These ran on a CPU with two cores; [rehearsals.csv](rehearsals.csv) lists what was left out of each "
    "experiment, such as GPUs, ranks, weights and data sets.\n\n"
)


def table() -> list[list[str]]:
    """Returns the rows of matrix.csv. A row that was not run again keeps its outcome, if its choices are the
    same; one that was not run yet is shown as such.
    """
    with PAGE.with_suffix(".csv").open(encoding="utf-8", newline="") as file:
        known = {tuple(row[:-2]): row[-2:] for row in csv.reader(file)}
    rows = [[str(n), *row.values()] for n, row in enumerate(json.loads(FILE.read_text())["rows"], 1)]
    return [[*row, *(_outcome(row[0]) or known.get(tuple(row), ["not yet", ""]))] for row in rows]


def page(rows: list[list[str]]) -> str:
    """Returns the page for these rows of matrix.csv."""
    refused = json.loads(FILE.read_text())["refused"]
    pairs = sum(len(key) == 2 for key in subsets())
    refused_pairs = sum(len(entry["choices"]) == 2 for entry in refused)
    counts = {"pairs": pairs, "refused": refused_pairs, "covered": pairs - refused_pairs, "rows": len(rows)}
    seconds = [int(row[-1]) for row in rows if row[-1]]
    counts |= {"fastest": min(seconds), "slowest": max(seconds), "ran": sum(row[-2] == "yes" for row in rows)}
    lines = [HEAD.format(**counts), "## Choices", "", "| choice | values |", "|---|---|"]
    lines += [f"| {factor} | {'; '.join(values)} |" for factor, values in FACTORS.items()]
    lines += ["", "## Refused", ""]
    lines += ["`tests/matrix/rows.json` lists the refused pairs and threes of each reason.", ""]
    reasons = Counter(entry["reason"] for entry in refused)
    lines += ["| refused | reason |", "|---|---|", *(f"| {n} | {reason} |" for reason, n in reasons.items())]
    return "\n".join(lines) + "\n"


def _outcome(number: str) -> list[str] | None:
    file = RESULTS / number / "rehearsal.json"
    if not file.exists():
        return None
    record = json.loads(file.read_text())
    seconds = sum(part["seconds"] for part in record["parts"] if part["part"] in ACTS)
    failed = [part["part"] for part in record["parts"] if not part["ran"]]
    return [f"no: {failed[0]}" if failed else "yes", f"{seconds:.0f}"]


def _rehearsal(record: dict[str, Any]) -> list[str]:
    parts = {part["part"]: part for part in record["parts"]}
    ran = sum(part["ran"] for part in parts.values())
    seconds = sum(part["seconds"] for name, part in parts.items() if name in ACTS)
    nats = parts["weight sync"]["note"].partition(", ")[2].removesuffix(" apart at most")
    cells = [record["experiment"], f"{ran} of {len(parts)}", f"{seconds:.0f}", parts["updates"]["note"]]
    return [*cells, nats, "; ".join(record["not_here"]) or "nothing is left out"]


if __name__ == "__main__":
    made = table()
    write_csv(PAGE.with_suffix(".csv"), ["row", *FACTORS, "ran", "seconds"], made)
    PAGE.write_text(page(made), encoding="utf-8")
    print(f"{PAGE} is written")
    if files := sorted(REHEARSED.glob("*/rehearsal.json")):
        rehearsed = [_rehearsal(json.loads(file.read_text())) for file in files]
        write_csv(REHEARSALS.with_suffix(".csv"), [*REHEARSED_HEADS, "not here"], rehearsed)
        shown = markdown_table(REHEARSED_HEADS, [row[:-1] for row in rehearsed])
        REHEARSALS.write_text(f"{REHEARSALS_HEAD}{shown}\n", encoding="utf-8")
        print(f"{REHEARSALS} is written")
