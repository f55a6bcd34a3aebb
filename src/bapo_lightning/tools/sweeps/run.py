"""Runs what a plan lists and has not finished, shows how far the runs are, and says what failed.

Runs are not asked. Once a second the end of `metrics.jsonl` of those that are at work is read.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from statistics import fmean
from typing import Any

from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

from bapo_lightning.report.progress.display import (
    Place,
    bar_line,
    clock,
    displayed_phases,
    on_terminal,
    shown,
    signs_of_life,
)
from bapo_lightning.report.progress.terminal import get_console, simple_table
from bapo_lightning.system.run_folder.find import SWEEP_RECORD, planned_runs
from bapo_lightning.system.run_folder.record import finite, newest_rows
from bapo_lightning.system.run_folder.text_file import write_json
from bapo_lightning.tools.sweeps.job import STOPPED, TrainJob, log_file
from bapo_lightning.tools.sweeps.launchers import Launch
from bapo_lightning.tools.sweeps.plan import SweepPlan, check_runs, compose_runs, finished_runs


def run_plan(plan: SweepPlan, launch: Launch, is_here: bool = True) -> dict[str, int]:
    """Runs what was not finished before, and keeps in `sweep.json` how it went; returns exit codes by run.
    Elsewhere than `is_here` there may be other devices and files, which are not checked. Raises ConfigError:
    nothing was started, because the sweep cannot work.
    """
    with displayed_phases():
        configs = compose_runs(plan)
        if is_here:
            check_runs(configs.values())
    finished = finished_runs(plan, configs)
    left = [run for run in plan.jobs if run not in finished]
    todo = {run: TrainJob((*plan.options, *plan.overrides(run)), plan.folder / run) for run in left}
    plan.folder.mkdir(parents=True, exist_ok=True)
    record(plan, {})
    counted = f"{len(plan.jobs)} runs in {plan.folder}: {len(finished)} finished before"
    get_console().print(counted, soft_wrap=not on_terminal(), highlight=False, markup=False)
    if not todo:
        return {}
    rows = {run: RunRow(job, num_updates(configs[run])) for run, job in todo.items()}
    codes: dict[str, int] = {}
    with followed(rows, plan.jobs) as ended:
        for run, code in launch(todo):
            codes[run] = code
            ended(run, code)
    codes = {**codes, **dict.fromkeys(todo.keys() - codes.keys(), STOPPED)}
    record(plan, codes)
    return codes


def record(plan: SweepPlan, codes: Mapping[str, int]) -> None:
    """Keeps in `sweep.json` the runs of the sweep, even those that never began, and how they ended."""
    earlier = planned_runs(plan.folder)
    runs = {
        run: {"overrides": list(job), "exit_code": codes.get(run, earlier.get(run, {}).get("exit_code"))}
        for run, job in plan.jobs.items()
    }
    content = {"sweep": plan.name, "common": plan.common, "reference": plan.reference}
    write_json(plan.folder / SWEEP_RECORD, {**content, "runs": earlier | runs})


def print_failures(plan: SweepPlan, codes: Mapping[str, int]) -> int:
    """Lists failed runs with their last line of output, counts what is left to do; returns the exit code."""
    failed = [run for run, code in codes.items() if code not in (0, STOPPED)]
    stopped = [run for run, code in codes.items() if code == STOPPED]
    for run in failed:
        log = log_file(plan.folder / run)
        lines = log.read_text(encoding="utf-8", errors="replace").split("\n") if log.is_file() else []
        last = next((line.strip() for line in reversed(lines) if line.strip()), "it wrote nothing")
        print(f"failed: {run}, see {log}: {last}", file=sys.stderr)
    if stopped:
        half_done = sum((plan.folder / run).is_dir() for run in stopped)
        ended = len(plan.jobs) - len(stopped) - len(failed)
        print(
            f"interrupted: {ended} finished, {len(failed)} failed, {half_done} half done, "
            f"{len(stopped) - half_done} not started; the same command continues with them",
            file=sys.stderr,
        )
    return 1 if failed else STOPPED if stopped else 0


LOOK_SECONDS = 1.0
REWARD = "train/reward"
NEWEST = 10  # updates that the shown reward is the mean of
_OTHER_COLUMNS = 40  # width of all columns but the first
_LINES_BESIDE = 6  # head of the table, its last line, and what else is displayed


class RunState(StrEnum):
    """How a run stands."""

    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"
    FAILED = "FAILED"
    STOPPED = "stopped"


_STYLES = dict(zip(RunState, ("dim", "", "green", "red", "yellow"), strict=True))
_ENDS = {0: RunState.FINISHED, STOPPED: RunState.STOPPED}  # by exit code; any other is a failure


@dataclass(eq=False)
class RunRow:
    """One run; times are of `time.monotonic`."""

    job: TrainJob
    num_updates: int  # of the whole run
    state: RunState = RunState.WAITING
    num_done: int = 0  # updates
    num_before: int = 0  # of them in earlier sessions
    reward: float | None = None
    began: float | None = None
    ended: float | None = None

    @property
    def share(self) -> float:
        """Share of its updates that is done; 1 however it ended."""
        return 1.0 if self.ended is not None else min(1.0, self.num_done / self.num_updates)

    def look(self, since: float) -> None:
        """Reads from its files whether it has started after `since`, a time.time, and how far it is: its job
        may run on another machine. Earlier updates do not count for the pace.
        """
        log = log_file(self.job.folder)
        # Clocks of files are coarse.
        if self.state == RunState.WAITING and log.exists() and log.stat().st_mtime >= since - 1:
            self.read()
            self.state, self.num_before = RunState.RUNNING, self.num_done
            self.began = self.job.began or time.monotonic()
        elif self.state == RunState.RUNNING:
            self.read()

    def read(self) -> None:
        """Reads the newest of its metrics."""
        if rows := newest_rows(self.job.folder):
            self.num_done = rows[-1]["step"] + 1
            rewards = [value for row in rows[-NEWEST:] if (value := finite(row.get(REWARD))) is not None]
            self.reward = fmean(rewards) if rewards else None

    def end(self, code: int) -> None:
        """Notes that it ended with this exit code."""
        self.read()
        self.state, self.ended = _ENDS.get(code, RunState.FAILED), time.monotonic()
        self.began = self.began or self.job.began

    def cells(self) -> tuple[str, str, str, str]:
        """State, updates, reward and time as texts."""
        updates = f"{self.num_done}/{self.num_updates}"
        reward = "" if self.reward is None else f"{self.reward:.3f}"
        seconds = "" if self.began is None else clock((self.ended or time.monotonic()) - self.began)
        return self.state, updates, reward, seconds


class RunsTable:
    """The rows of all runs, as many as fit, and the time left for all."""

    def __init__(self, rows: Sequence[RunRow]) -> None:
        """Counts time from now on."""
        self.rows = rows
        self._start, self._since = time.monotonic(), time.time()
        self._looked = -math.inf

    @property
    def num_ended(self) -> str:
        """How many have ended."""
        return f"{sum(row.ended is not None for row in self.rows)}/{len(self.rows)}"

    @property
    def seconds_left(self) -> float | None:
        """Time until all runs have ended, at the pace so far; None before the first update of all."""
        done = sum(row.share for row in self.rows)
        progress = done - sum(row.num_before / row.num_updates for row in self.rows)
        return (len(self.rows) - done) * (time.monotonic() - self._start) / progress if progress > 0 else None

    def line(self, row: RunRow, name: str) -> str:
        """Line about a run that has ended, for output without a terminal."""
        width = 2 * len(str(len(self.rows))) + 1
        state, updates, reward, seconds = row.cells()
        parts = [f"{updates} updates", f"reward {reward}" if reward else "", seconds]
        seconds_left = self.seconds_left
        left = f"; {clock(seconds_left)} left" if seconds_left else ""
        return f"[{self.num_ended:>{width}}] {state:<8}  {name}: {', '.join(filter(None, parts))}{left}"

    def said(self) -> str:
        """Line about all runs, for output without a terminal."""
        self._look()
        done, total = (sum(getattr(row, name) for row in self.rows) for name in ("num_done", "num_updates"))
        left = self.seconds_left
        return f"runs {self.num_ended}, {done}/{total} updates" + (f", {clock(left)} left" if left else "")

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """The rows around those at work, and a line on all."""
        now = time.monotonic()
        if now - self._looked >= LOOK_SECONDS:
            self._looked = now
            self._look()
        yield table_of(self._window(max(1, console.height - _LINES_BESIDE)), options.max_width)
        done = sum(row.share for row in self.rows)
        yield bar_line(f"runs {self.num_ended}", done, len(self.rows), now - self._start, self.seconds_left)

    def _look(self) -> None:
        for row in self.rows:
            row.look(self._since)

    def _window(self, size: int) -> Sequence[RunRow]:
        first = next((number for number, row in enumerate(self.rows) if row.ended is None), len(self.rows))
        start = max(0, min(first - size // 3, len(self.rows) - size))
        return self.rows[start : start + size]


@contextmanager
def followed(
    rows: Mapping[str, RunRow], names: Mapping[str, Sequence[str]]
) -> Iterator[Callable[[str, int], None]]:
    """Context that shows how far the runs are: a table on a terminal, else a line at the end of each, named
    by its overrides. Yields what is to be called with the name and the exit code of a run that has ended.
    """
    table = RunsTable(list(rows.values()))

    def ended(run: str, code: int) -> None:
        rows[run].end(code)
        if not on_terminal():
            print(table.line(rows[run], " ".join(names[run])), flush=True)

    with shown(Place.RUNS, table), signs_of_life(table.said):
        yield ended
    if on_terminal():
        get_console().print(table_of(table.rows, get_console().width))


def num_updates(config: Mapping[str, Any]) -> int:
    """Updates of a run with this composed configuration."""
    regime = config["regime"]
    return int(config["scale"]["num_rollout_batches"] * regime["epochs"] * regime["minibatches"])


def table_of(rows: Iterable[RunRow], width: int) -> Table:
    """Runs with state, updates, reward and time, at most so many characters wide."""
    table = simple_table(1)
    room = max(8, width - _OTHER_COLUMNS)
    table.add_column("run", no_wrap=True, overflow="ellipsis", max_width=room)
    table.add_column("", no_wrap=True)
    for title in ("updates", "reward", "time"):
        table.add_column(title, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(Text(row.job.folder.name), *row.cells(), style=_STYLES[row.state])
    return table
