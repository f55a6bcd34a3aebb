"""Jobs of language worlds: training runs, each a process of its own, and the curves that they left."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from bapo_lightning.configuration.compose import hydra_overrides
from bapo_lightning.configuration.run_config import RunConfig
from bapo_lightning.modules.bound_rules import BoundRule
from bapo_lightning.report.run.curves import held_out
from bapo_lightning.system.run_folder.record import Row, finite, read_run
from bapo_lightning.tools.sweeps.launchers import Ended, Jobs, run_local
from bapo_lightning.tools.sweeps.plan import SweepPlan
from bapo_lightning.tools.sweeps.run import print_failures, run_plan
from studies.exact.train import shares_at_ends
from studies.map.cells import FRESH, write_measured
from studies.map.jobs import Job
from studies.map.kept import KeptRuns
from studies.map.plan import MapConfig
from studies.virtual_time import TIMES_FILE, runs_forked

# Curve of the map -> metric of a run, whose mean since the measurement before it is.
MEANS = {
    "entropy": "policy/entropy",
    "low": "bapo/clip_low",
    "high": "bapo/clip_high",
    "target_met": "bapo/target_met",
    "positive_share": "bapo/positive_share",
    "positive_share_unclipped": "bapo/positive_share_unclipped",
    "clip_fraction": "train/clip_fraction",
    "clip_fraction_positive": "train/clip_fraction_positive",
    "clip_fraction_negative": "train/clip_fraction_negative",
    "grad_norm": "train/grad_norm",
    "update_seconds": "time/update_seconds",
    "age": "staleness/age_mean",
    "oldest": "staleness/age_max",
    "evicted": "rollout/evicted",
    "masked": "staleness/masked_tokens",
    "length_ratio": "rollout/trained_length_ratio",
    "score_difference": "rollout/trained_score_difference",
}
SEARCHED = ("bapo/clip_low", "bapo/clip_high", "bapo/positive_share")


def make_runs(config: MapConfig, methods: Mapping[str, RunConfig], jobs: Sequence[Job]) -> int:
    """Trains what no run was kept of, collects the curves of every job, and returns the exit code."""
    kept = None if config.kept is None else KeptRuns(Path(config.kept))
    plan = plan_runs(config, jobs)
    job_of = {run_name(job, seed): job for job in jobs for seed in job.seeds}
    if kept is not None:
        kept.check({run: (*plan.common, *overrides) for run, overrides in plan.jobs.items()})
        plan = replace(plan, jobs={run: job for run, job in plan.jobs.items() if run not in kept})

    def keep(run: str) -> None:
        if kept is not None and run not in kept:
            curves = curves_of(plan.folder / run, rule_of(methods, job_of[run]))
            commit = read_run(plan.folder / run).manifest.get("git_commit")
            kept.add(run, (*plan.common, *plan.jobs[run]), curves, commit)
            # Of a real model a hundred checkpoints fill a disk, and nobody resumes what has ended.
            shutil.rmtree(plan.folder / run / "checkpoints", ignore_errors=True)

    def launch(todo: Jobs) -> Iterator[Ended]:
        for world, entry in config.worlds.items():
            runs = {run: job for run, job in todo.items() if job_of[run].cell.world == world}
            if not runs:
                continue
            durations, processes = entry.durations, config.processes
            ended = runs_forked(durations, runs) if durations else run_local(runs, parallel_runs=processes)
            for run, code in ended:
                if code == 0:
                    keep(run)
                yield run, code

    if failed := print_failures(plan, run_plan(plan, launch)):
        return failed
    for run in plan.jobs:  # one may have finished in a session that ended before it was kept
        keep(run)
    for job in jobs:
        names = [run_name(job, seed) for seed in job.seeds]
        rule = rule_of(methods, job)
        curves = [
            kept.curves(name) if kept is not None and name in kept else curves_of(plan.folder / name, rule)
            for name in names
        ]
        stacked = {name: np.stack([arrays[name] for arrays in curves]) for name in curves[0]}
        write_measured(job.path, job.seeds, stacked)
    return 0


def plan_runs(config: MapConfig, jobs: Sequence[Job]) -> SweepPlan:
    """All runs, seed by seed: what an interruption leaves are whole seeds."""
    pairs = sorted(((job, seed) for job in jobs for seed in job.seeds), key=lambda pair: pair[1])
    return SweepPlan(
        name="map",
        folder=Path(config.output, "runs"),
        jobs={run_name(job, seed): overrides(config, job, seed) for job, seed in pairs},
        common=tuple(hydra_overrides(config.common)),
    )


def run_name(job: Job, seed: int) -> str:
    """Folder of a run. Data of the newest policy serve all stalenesses."""
    return f"{job.path.parent.name}-{job.method}-s{seed}"


def overrides(config: MapConfig, job: Job, seed: int) -> tuple[str, ...]:
    """Overrides of a run. Every run makes as many updates on as many answers, however stale they are."""
    experiment = config.worlds[job.cell.world].experiment
    first, *_ = config.methods
    is_fresh = job.method == FRESH
    updates = 1 if is_fresh else job.cell.staleness
    lag = 0 if is_fresh else job.cell.lag
    protocol = {
        "regime": "on_policy" if is_fresh else "async" if lag else "replay",
        **({"regime.max_age": lag} if lag else {}),  # an engine that takes no time is always so far ahead
        "regime.epochs": 1,
        "regime.minibatches": updates,
        "scale.prompts_per_batch": config.problems_per_update * updates,
        "scale.num_rollout_batches": config.num_updates // updates,
        "scale.group_size": config.group_size,
        "optimizer.optimizer.lr": job.cell.learning_rate,
        "callbacks.validation.every": config.measure_every,
        "seed": seed,
    }
    chosen = config.methods[first if is_fresh else job.method].set
    settings = {"experiment": experiment, **protocol, **dict(job.cell.options), **chosen}
    return tuple(hydra_overrides(settings))


def rule_of(methods: Mapping[str, RunConfig], job: Job) -> BoundRule:
    return methods[next(iter(methods)) if job.method == FRESH else job.method].algorithm.bounds.make()


def curves_of(folder: Path, rule: BoundRule) -> dict[str, np.ndarray]:
    """Held-out reward at every validation, and means of the other metrics since the one before."""
    record = read_run(folder)
    steps, rewards = held_out(record)
    _, best_of_k = held_out(record, "pass")
    means: dict[str, list[float]] = {name: [] for name in (*MEANS, "rests", "ends")}
    rows = iter(record.rows)
    for step in steps:
        part = []
        for row in rows:
            part.append(row)
            if row["step"] == step:
                break
        for name, metric in MEANS.items():
            means[name].append(mean(part, metric))
        # A share that is undefined is absent: that update had nothing to balance.
        bounds = (torch.tensor([row.get(metric, torch.nan) for row in part]) for metric in SEARCHED)
        for name, share in zip(("rests", "ends"), shares_at_ends(rule, *bounds), strict=True):
            means[name].append(float(share))
    curves = {"reward": rewards, "pass_at_k": best_of_k, **means}
    if (file := folder / TIMES_FILE).exists():
        begins = json.loads(file.read_text())
        curves["time"] = [begins[step] for step in steps]
    return {name: np.array(values) for name, values in curves.items()}


def mean(rows: Sequence[Row], metric: str) -> float:
    values = [value for row in rows if (value := finite(row.get(metric))) is not None]
    return float(np.mean(values)) if values else float("nan")
