"""Runs what a plan lists and has not finished, and says what failed."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping

from rich import get_console

from bapo_lightning.report.progress.display import on_terminal, phases_shown
from bapo_lightning.run_folder.find import SWEEP_RECORD
from bapo_lightning.run_folder.text_file import write_json
from bapo_lightning.runs.sweeps.job import STOPPED, TrainJob, log_file
from bapo_lightning.runs.sweeps.launchers import Launch
from bapo_lightning.runs.sweeps.plan import SweepPlan, check_runs, compose_runs, finished_runs
from bapo_lightning.runs.sweeps.progress import followed, num_updates


def run_plan(plan: SweepPlan, launch: Launch, is_here: bool = True) -> dict[str, int]:
    """Runs what was not finished before, and keeps in `sweep.json` how it went; returns exit codes by run.
    Elsewhere than `is_here` there may be other devices and files, which are not checked.

    Raises:
        ConfigError: nothing was started, because the sweep cannot work.
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
    path = plan.folder / SWEEP_RECORD
    earlier = json.loads(path.read_text(encoding="utf-8"))["runs"] if path.is_file() else {}
    runs = {
        run: {"overrides": list(job), "exit_code": codes.get(run, earlier.get(run, {}).get("exit_code"))}
        for run, job in plan.jobs.items()
    }
    content = {"sweep": plan.name, "common": plan.common, "reference": plan.reference}
    write_json(path, {**content, "runs": earlier | runs})


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
