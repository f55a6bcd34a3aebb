"""How far the jobs of Hydra's `--multirun` are, by what each leaves in its folder.

<sweep folder>/<job>/sweep.json -> run folder -> config.yaml, metrics.jsonl, manifest.json
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import product
from pathlib import Path

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from rich import get_console

from bapo_lightning.configuration.compose import compose_run
from bapo_lightning.errors import DataError
from bapo_lightning.phases import phase
from bapo_lightning.report.progress.display import Place, on_terminal, shown
from bapo_lightning.run_folder.find import SWEEP_RECORD
from bapo_lightning.run_folder.record import read_config, read_manifest
from bapo_lightning.runs.sweeps.check import check_runs
from bapo_lightning.runs.sweeps.progress import RunRow, RunsTable, State, num_updates

_ENDS = {"finished": State.FINISHED, "failed": State.FAILED, "interrupted": State.STOPPED}


@contextmanager
def jobs_followed(folder: Path, overrides: Sequence[str]) -> Iterator[None]:
    """Context that shows a row for each job on a terminal.

    Args:
        folder: of the multirun.
        overrides: of its command line, with several values for what varies.
    """
    rows = [RunRow(name, None) for name in planned_jobs(overrides)]

    def notice() -> None:
        for record in folder.glob(f"*/{SWEEP_RECORD}"):
            with suppress(OSError, ValueError, LookupError):
                found = json.loads(record.read_text(encoding="utf-8"))
                (run,) = found["runs"]
                _update(_row(rows, found["job"]), record.parent / run)

    table = RunsTable(rows, notice)
    with shown(Place.RUNS, table):
        yield
    if on_terminal():
        notice()
        get_console().print(table.whole(get_console().width))


def planned_jobs(overrides: Sequence[str]) -> list[str]:
    """Overrides that differ between jobs, in the jobs' order; empty where only their sweeper knows."""
    return [" ".join(job) for job in _combinations(overrides)]


def _combinations(overrides: Sequence[str]) -> list[tuple[str, ...]]:
    varied: dict[str, list[str]] = {}
    try:
        for override in OverridesParser.create().parse_overrides(list(overrides)):
            if override.is_sweep_override():
                key = override.get_key_element()
                varied[key] = [f"{key}={value}" for value in override.sweep_string_iterator()]
    except HydraException:
        return []
    return list(product(*varied.values()))


def check_jobs(overrides: Sequence[str]) -> None:
    """Raises ConfigError with what would stop any job at its start, before the first begins.

    Args:
        overrides: of the command line, with several values for what varies.
    """
    parsed = OverridesParser.create().parse_overrides(list(overrides))
    fixed = [text for text, item in zip(overrides, parsed, strict=True) if not item.is_sweep_override()]
    jobs = _combinations(overrides)
    with phase("composing runs", len(jobs)):
        configs = [compose_run([*fixed, *job]) for job in jobs]
    check_runs(configs)


def _row(rows: list[RunRow], number: int) -> RunRow:
    """The row of a job; its number is its name where it was not planned."""
    rows += [RunRow(f"job {new}", None) for new in range(len(rows), number + 1)]
    return rows[number]


def _update(row: RunRow, folder: Path) -> None:
    """Begins or ends the row of a job by the folder of its run."""
    row.folder = folder  # one that is resumed becomes known later
    if row.state == State.WAITING:
        row.begin(time.monotonic())
    if row.ended is not None:
        return
    with suppress(DataError):  # not written yet
        if row.num_updates is None:
            row.num_updates = num_updates(read_config(folder))
        if (status := read_manifest(folder).get("status")) in _ENDS:
            row.end(_ENDS[status])
