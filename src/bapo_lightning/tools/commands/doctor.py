"""Faults of a run, since when, and what to do: `python -m bapo_lightning doctor RUN`.

RUN is a run folder, a folder or glob of runs (the newest), or a log: TRL's output folder or
trainer_state.json, verl's .jsonl, an event file of TensorBoard, a table of W&B. The exit code is 0 if nothing
is found, 1 if something is, and 2 if RUN cannot be read.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from bapo_lightning.runs.command import command, end_with, parser_of
from bapo_lightning.system.run_folder.find import find_runs, newest_run
from bapo_lightning.system.run_folder.record import read_config
from bapo_lightning.tools.doctor.causes import Finding, diagnose, facts_of, unexplained
from bapo_lightning.tools.doctor.curves import WATCHED, Curves, curves_of, is_run

FOUND = 1  # exit code


@command(2)
def main(arguments: Sequence[str] | None = None) -> int:
    """Prints findings, the earliest first."""
    parser = parser_of("doctor", __doc__)
    parser.add_argument("run", metavar="RUN", help="run folder, glob of runs (the newest), or a log")
    parser.add_argument("--json", action="store_true", help="print a line of JSON")
    parsed = parser.parse_args(arguments)
    path = found_at(parsed.run)
    curves = curves_of(path)
    findings = diagnose(curves, facts_of(read_config(path) if is_run(path) else {}))
    alarms = unexplained(curves, findings)
    found = {"run": str(path), "findings": [asdict(finding) for finding in findings], "alarms": alarms}
    print(json.dumps(found) if parsed.json else "\n".join(lines(path, curves, findings, alarms)))
    return FOUND if findings else 0


def found_at(named: str) -> Path:
    """A log, or the newest of the runs."""
    runs = [run for run in find_runs([named]) if is_run(run)]
    return newest_run(runs) if runs else Path(named)


def lines(path: Path, curves: Curves, findings: Sequence[Finding], alarms: Mapping[str, int]) -> list[str]:
    """Findings in words, later ones and alarms in a line each."""
    said = ", ".join(f"{name} since update {since}" for name, since in alarms.items())
    possible = [f"alarms that no finding explains (possible): {said}"] if alarms else []
    if not findings:
        last, known = max(steps[-1] for steps, _ in curves.values()), len(WATCHED & curves.keys())
        nothing = f"nothing found in {path}, to update {last} ({known} of {len(WATCHED)} curves read)"
        return [nothing, *possible]
    first, *others = findings
    return [
        f"{first.cause}, since update {first.since} ({first.certainty})",
        f"  evidence  {first.evidence}",
        f"  remedy    {first.remedy}",
        *(f"later, maybe a consequence: {each.cause}, since update {each.since}" for each in others),
        *possible,
    ]


if __name__ == "__main__":
    end_with(main)
