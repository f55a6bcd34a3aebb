"""All runs of a sweep, then one table: `python -m bapo_lightning.cli.sweep sweep=baselines [overrides]`.

    conf/sweeps/<name>.yaml, overrides -> plan, checked as a whole -> launcher (local, submitit, ray) -> table

Each run is a process of its own, so one that fails does not stop the others and is listed; runs that finished
before are not repeated, and those that were interrupted go on from their newest checkpoint.
Hydra's own `--multirun` works too; this adds the skipping, the shared cores and the table.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich import get_console

from bapo_lightning.cli.command import command
from bapo_lightning.cli.report import main as report
from bapo_lightning.configuration.conf_dir import conf_dir
from bapo_lightning.configuration.help import choices, usage
from bapo_lightning.configuration.targets import TARGET, Target, target_problems
from bapo_lightning.errors import ConfigError
from bapo_lightning.phases import phase
from bapo_lightning.report.progress.display import on_terminal, phases_shown
from bapo_lightning.run_folder.find import SWEEP_RECORD, find_runs
from bapo_lightning.run_folder.text_file import write_json
from bapo_lightning.runs.sweeps.check import check_runs
from bapo_lightning.runs.sweeps.job import STOPPED, TrainJob, log_file
from bapo_lightning.runs.sweeps.launchers import local_slots, num_cores, run_local, run_submitit
from bapo_lightning.runs.sweeps.plan import Plan, compose_runs, finished_runs, read_plan
from bapo_lightning.runs.sweeps.progress import followed, num_updates


def help_text() -> str:
    """Text of `--help`."""
    files = sorted(Path(conf_dir(), "sweeps").glob("*.yaml"))
    shown = usage(
        "sweep [sweep=NAME] [KEY=VALUE,VALUE ...]",
        'sweep SWEEP=baselines ARGS="seed=0,1"',
        "Trains all runs of a sweep, and compares them in one table. Sweeps:",
    )
    return "\n".join([shown, *choices(files)])


@command(2, usage=help_text)
def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; its exit code is 1 when a run failed, 2 when nothing could be started."""
    plan = read_plan(sys.argv[1:] if arguments is None else arguments)
    codes = run_plan(plan)
    if any(codes.get(run, 0) == 0 for run in plan.jobs):  # those without a code finished before
        reference = ["--reference", plan.reference] if plan.reference else []
        report([str(plan.folder), "--output", str(plan.folder), *reference])
        if earlier := len(find_runs([str(plan.folder)])) - len(plan.jobs):
            print(f"  runs of earlier calls in this folder: {earlier}")
        print(f'  to compare them on one page: make compare RUNS="{plan.folder}"', flush=True)
    return print_failures(plan, codes)


def run_plan(plan: Plan) -> dict[str, int]:
    """Runs what was not finished before, and keeps in `sweep.json` how it went; returns exit codes by run.

    Raises:
        ConfigError: nothing was started, because the sweep cannot work.
    """
    is_local = plan.launcher["name"] == "local"
    if (launcher := own_launcher(plan)) is not None:
        launcher.prepare(len(plan.jobs))
    with phases_shown():
        with phase("composing runs", len(plan.jobs)):
            configs = compose_runs(plan)
        if is_local:  # elsewhere there may be other devices and files than here
            check_runs(configs.values())
    finished = finished_runs(plan, configs)
    todo = [run for run in plan.jobs if run not in finished]
    slots = local_slots(plan.launcher, plan.parallel_runs)[: max(1, len(todo))] if is_local else []
    plan.folder.mkdir(parents=True, exist_ok=True)
    record(plan, {})
    at_a_time = f", {len(slots)} at a time" if slots else f", launched by {plan.launcher['name']}"
    told = f"{len(plan.jobs)} runs in {plan.folder}: {len(finished)} finished before{at_a_time}"
    get_console().print(told, soft_wrap=not on_terminal(), highlight=False, markup=False)
    codes = launch(plan, {run: num_updates(configs[run]) for run in todo}, slots)
    record(plan, codes)
    return codes


def launch(plan: Plan, todo: Mapping[str, int], slots: list[dict[str, str]]) -> dict[str, int]:
    """Runs what is left to do, with so many updates each; returns exit codes by run."""
    if not todo:
        return {}
    threads = max(1, num_cores() // len(slots)) if slots else None
    jobs = {run: TrainJob(plan.overrides(run), plan.folder / run, threads) for run in todo}
    with followed(jobs, todo, plan.jobs) as ended:
        if slots:
            return run_local(jobs, slots, ended)
        if (launcher := own_launcher(plan)) is not None:
            codes: dict[str, int] = launcher.run(jobs, plan.folder, ended)
            return codes
        return run_submitit(jobs, plan.folder / "submitit", plan.launcher, ended)


def own_launcher(plan: Plan) -> Any:
    """What the launcher's file names by `_target_`, with `prepare` and `run`; None where it names nothing.

    Raises:
        ConfigError: an option of it is wrong.
    """
    options = {key: value for key, value in plan.launcher.items() if key != "name"}
    if TARGET not in options:
        return None
    if problems := list(target_problems(options, "launcher")):
        raise ConfigError(problems)
    return Target(options).make()


def record(plan: Plan, codes: Mapping[str, int]) -> None:
    """Keeps in `sweep.json` the runs of the sweep, even those that never began, and how they ended."""
    path = plan.folder / SWEEP_RECORD
    earlier = json.loads(path.read_text(encoding="utf-8"))["runs"] if path.is_file() else {}
    runs = {
        run: {"overrides": list(job), "exit_code": codes.get(run, earlier.get(run, {}).get("exit_code"))}
        for run, job in plan.jobs.items()
    }
    content = {"sweep": plan.name, "common": plan.common, "reference": plan.reference}
    write_json(path, {**content, "runs": earlier | runs})


def print_failures(plan: Plan, codes: Mapping[str, int]) -> int:
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


if __name__ == "__main__":
    sys.exit(main())
