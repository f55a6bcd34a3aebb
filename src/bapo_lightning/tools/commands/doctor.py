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
from typing import Any

from bapo_lightning.report.intervals import Interval
from bapo_lightning.runs.command import command, end_with, parser_of
from bapo_lightning.system.run_folder.find import find_runs, newest_run
from bapo_lightning.system.run_folder.record import read_config
from bapo_lightning.tools.doctor.causes import Finding, diagnose, facts_of, unexplained
from bapo_lightning.tools.doctor.curves import WATCHED, Curves, curves_of, is_run
from bapo_lightning.tools.doctor.staleness import Staleness, staleness

FOUND = 1  # exit code
UNITS = {"update": "update  ", "rate": "sum of lr"}


@command(2)
def main(arguments: Sequence[str] | None = None) -> int:
    """Prints findings, the earliest first."""
    parser = parser_of("doctor", __doc__)
    parser.add_argument("run", metavar="RUN", help="run folder, glob of runs (the newest), or a log")
    text = "also print where the difference of engine and trainer comes from"
    parser.add_argument("--staleness", action="store_true", help=text)
    parser.add_argument("--json", action="store_true", help="print a line of JSON")
    parsed = parser.parse_args(arguments)
    path = resolve_path(parsed.run)
    curves = curves_of(path)
    facts = facts_of(read_config(path) if is_run(path) else {})
    findings = diagnose(curves, facts)
    alarms = unexplained(curves, findings)
    report: dict[str, Any] = {
        "run": str(path),
        "findings": [asdict(finding) for finding in findings],
        "alarms": alarms,
    }
    said = lines(path, curves, findings, alarms)
    if parsed.staleness:
        verdict = staleness(curves, facts)
        report["staleness"] = None if verdict is None else asdict(verdict)
        said += staleness_lines(verdict)
    print(json.dumps(report) if parsed.json else "\n".join(said))
    return FOUND if findings else 0


def resolve_path(named: str) -> Path:
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


def staleness_lines(verdict: Staleness | None) -> list[str]:
    """The verdict, and the fits that it follows from."""
    if verdict is None:
        return ["staleness: no difference of engine and trainer is recorded"]
    fresh = "" if verdict.fresh is None else f", {verdict.fresh:.2g} at age 0"
    return [
        f"staleness: {verdict.kind}; {verdict.why}",
        f"  difference   {verdict.mean:.2g} nats per token from update {verdict.since} on{fresh}",
        *(
            f"  per {UNITS[fit.clock]}  age {_interval(fit.age)}, time {_interval(fit.time)}; "
            f"at age 0 {_interval(fit.fresh)}; R2 {fit.explained:.2f}"
            for fit in verdict.fits
        ),
    ]


def _interval(interval: Interval | None) -> str:
    return "unknown" if interval is None else f"{interval.mean:.2g} ± {interval.half_width:.2g}"


if __name__ == "__main__":
    end_with(main)
