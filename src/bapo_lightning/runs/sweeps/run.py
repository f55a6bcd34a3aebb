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
from pathlib import Path
from statistics import fmean
from typing import Any

from rich import box
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

from bapo_lightning.report.progress.display import Place, on_terminal, phases_shown, shown, signs_of_life
from bapo_lightning.report.progress.lines import bar_line, clock
from bapo_lightning.report.progress.terminal import get_console
from bapo_lightning.run_folder.find import SWEEP_RECORD, planned_runs
from bapo_lightning.run_folder.record import finite, newest_rows
from bapo_lightning.run_folder.text_file import write_json
from bapo_lightning.runs.sweeps.job import STOPPED, TrainJob, log_file
from bapo_lightning.runs.sweeps.launchers import Ended, Jobs, Launch
from bapo_lightning.runs.sweeps.plan import SweepPlan, check_runs, compose_runs, finished_runs


def run_plan(plan: SweepPlan, launch: Launch, is_here: bool = True) -> dict[str, int]:
    """Runs what was not finished before, and keeps in `sweep.json` how it went; returns exit codes by run.
    Elsewhere than `is_here` there may be other devices and files, which are not checked. Raises ConfigError:
    nothing was started, because the sweep cannot work.
    """
    with phases_shown():
        configs = compose_runs(plan)
        if is_here:
            check_runs(configs.values())
    finished = finished_runs(plan, configs)
    todo = {
        run: TrainJob((*plan.options, *plan.overrides(run)), plan.folder / run)
        for run in plan.jobs
        if run not in finished
    }
    plan.folder.mkdir(parents=True, exist_ok=True)
    record(plan, {})
    told = f"{len(plan.jobs)} runs in {plan.folder}: {len(finished)} finished before"
    get_console().print(told, soft_wrap=not on_terminal(), highlight=False, markup=False)
    if not todo:
        return {}
    updates = {run: num_updates(configs[run]) for run in todo}
    with followed(todo, updates, plan.jobs) as ended:
        codes = launch(todo, ended)
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
    """Lists the runs that failed, each with its last line of output, and counts what an interrupted sweep
    leaves to do; returns the exit code of the command.
    """
    failed = [run for run, code in codes.items() if code not in (0, STOPPED)]
    stopped = [run for run, code in codes.items() if code == STOPPED]
    for run in failed:
        log = log_file(plan.folder / run)
        lines = log.read_text(encoding="utf-8", errors="replace").split("\n") if log.is_file() else []
        last = next((line.strip() for line in reversed(lines) if line.strip()), "it wrote nothing")
        print(f"failed: {run}, see {log}: {last}", file=sys.stderr)
    if stopped:
        begun = sum((plan.folder / run).is_dir() for run in stopped)
        ended = len(plan.jobs) - len(stopped) - len(failed)
        print(
            f"interrupted: {ended} finished, {len(failed)} failed, {begun} half done, "
            f"{len(stopped) - begun} not begun; the same command goes on with them",
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

    @classmethod
    def after(cls, code: int) -> RunState:
        """That of a run which ended with this exit code."""
        return cls.FINISHED if code == 0 else cls.STOPPED if code == STOPPED else cls.FAILED


_STYLES = dict(zip(RunState, ("dim", "", "green", "red", "yellow"), strict=True))


@dataclass(eq=False)
class RunRow:
    """One run; times are of `time.monotonic`."""

    name: str
    folder: Path
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

    @property
    def seconds(self) -> float | None:
        """Time that it has taken; None before its beginning."""
        if self.began is None:
            return None
        return (time.monotonic() if self.ended is None else self.ended) - self.began

    def read(self) -> None:
        """Reads the newest of its metrics."""
        if rows := newest_rows(self.folder):
            self.num_done = rows[-1]["step"] + 1
            rewards = [value for row in rows[-NEWEST:] if (value := finite(row.get(REWARD))) is not None]
            self.reward = fmean(rewards) if rewards else None

    def begin(self, now: float) -> None:
        """Notes that it runs since `now`. What it did before does not count for the pace."""
        self.read()
        self.state, self.began, self.num_before = RunState.RUNNING, now, self.num_done

    def end(self, state: RunState) -> None:
        """Notes its end."""
        self.read()
        self.state, self.ended = state, time.monotonic()

    def cells(self) -> tuple[str, str, str, str]:
        """State, updates, reward and time as texts."""
        updates = f"{self.num_done}/{self.num_updates}"
        reward = "" if self.reward is None else f"{self.reward:.3f}"
        return self.state, updates, reward, "" if self.seconds is None else clock(self.seconds)


class RunsTable:
    """The rows of all runs, as many as fit, and the time left for all."""

    def __init__(self, rows: Sequence[RunRow], notice: Callable[[], None]) -> None:
        """`notice` begins and ends rows by what it sees; it is called before rows are read."""
        self.rows, self._notice = rows, notice
        self._start = time.monotonic()
        self._looked = -math.inf

    @property
    def num_ended(self) -> int:
        """Runs that have ended."""
        return sum(row.ended is not None for row in self.rows)

    @property
    def seconds_left(self) -> float | None:
        """Time until all runs have ended, at the pace so far; None before the first update of all."""
        done = sum(row.share for row in self.rows)
        made = done - sum(row.num_before / row.num_updates for row in self.rows)
        return (len(self.rows) - done) * (time.monotonic() - self._start) / made if made > 0 else None

    def line(self, row: RunRow, name: str) -> str:
        """Line about a run that has ended, where there is no terminal."""
        width = len(str(len(self.rows)))
        state, updates, reward, seconds = row.cells()
        parts = [f"{updates} updates", f"reward {reward}" if reward else "", seconds]
        seconds_left = self.seconds_left
        left = f"; {clock(seconds_left)} left" if seconds_left else ""
        told = f"{state:<8}  {name}: {', '.join(filter(None, parts))}{left}"
        return f"[{self.num_ended:{width}}/{len(self.rows)}] {told}"

    def said(self) -> str:
        """Line about all, where there is no terminal."""
        self._look()
        done, total = (sum(getattr(row, name) for row in self.rows) for name in ("num_done", "num_updates"))
        left = self.seconds_left
        told = f"runs {self.num_ended}/{len(self.rows)}, {done}/{total} updates"
        return f"{told}, {clock(left)} left" if left else told

    def whole(self, width: int) -> Table:
        """Every row, at most so many characters wide."""
        return _table(self.rows, width)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """The rows around those at work, and a line on all."""
        now = time.monotonic()
        if now - self._looked >= LOOK_SECONDS:
            self._looked = now
            self._look()
        yield _table(self._window(max(1, console.height - _LINES_BESIDE)), options.max_width)
        label, done = f"runs {self.num_ended}/{len(self.rows)}", sum(row.share for row in self.rows)
        yield bar_line(label, done, len(self.rows), now - self._start, self.seconds_left)

    def _look(self) -> None:
        self._notice()
        for row in self.rows:
            if row.state == RunState.RUNNING:
                row.read()

    def _window(self, size: int) -> Sequence[RunRow]:
        first = next((number for number, row in enumerate(self.rows) if row.ended is None), len(self.rows))
        start = max(0, min(first - size // 3, len(self.rows) - size))
        return self.rows[start : start + size]


@contextmanager
def followed(jobs: Jobs, updates: Mapping[str, int], names: Mapping[str, Sequence[str]]) -> Iterator[Ended]:
    """Context that shows how far the runs are: a table on a terminal, else a line at the end of each, named
    by its overrides. Yields what is to be called at the end of a run.
    """
    rows = {run: RunRow(run, job.folder, updates[run]) for run, job in jobs.items()}
    start = time.time()

    def notice() -> None:
        for run, row in rows.items():
            # The job may be at work on another machine.
            if row.state == RunState.WAITING and _changed_since(log_file(jobs[run].folder), start):
                row.begin(jobs[run].began or time.monotonic())

    def ended(run: str, code: int) -> None:
        row = rows[run]
        row.began = row.began or jobs[run].began
        row.end(RunState.after(code))
        if not on_terminal():
            print(table.line(row, " ".join(names[run])), flush=True)

    table = RunsTable(list(rows.values()), notice)
    with shown(Place.RUNS, table), signs_of_life(table.said):
        yield ended
    if on_terminal():
        get_console().print(table.whole(get_console().width))


def num_updates(config: Mapping[str, Any]) -> int:
    """Updates of a run with this composed configuration."""
    regime = config["regime"]
    return int(config["scale"]["num_rollout_batches"] * regime["epochs"] * regime["minibatches"])


def _changed_since(file: Path, start: float) -> bool:
    return file.exists() and file.stat().st_mtime >= start - 1  # clocks of files are coarse


def _table(rows: Iterable[RunRow], width: int) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    room = max(8, width - _OTHER_COLUMNS)
    table.add_column("run", no_wrap=True, overflow="ellipsis", max_width=room)
    table.add_column("", no_wrap=True)
    for title in ("updates", "reward", "time"):
        table.add_column(title, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(Text(row.name), *row.cells(), style=_STYLES[row.state])
    return table
