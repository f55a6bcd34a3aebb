"""The sick runs and their twins: what is trained, and the curves that are kept of each run."""

from __future__ import annotations

import math
import os
import shutil
from collections.abc import Iterator
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import yaml
from pydantic import Field

from bapo_lightning.configuration.compose import hydra_overrides
from bapo_lightning.configuration.sections import Section
from bapo_lightning.library import fit
from bapo_lightning.system.values import Count, CountOrZero
from bapo_lightning.tools.doctor.curves import READ, Curves, curves_of
from bapo_lightning.tools.doctor.staleness import Kind
from studies import CONF
from studies.commands import counted
from studies.map.kept import KeptRuns

DIGITS = 4  # of a kept value
KEPT = READ | {"train/loss", "train/grad_norm", "train/clip_fraction"}  # that a doctor reads, ours or another


class CauseEntry(Section):
    """How a run is made sick, from the update `onset` on."""

    finding: str | None
    onset: CountOrZero = 0
    twin: str = "healthy"
    engine: str | None = None  # fault of `faults.SickEngine`
    set: dict[str, object] = Field(default_factory=dict)


class CorpusConfig(Section):
    seeds: Count
    common: dict[str, object]
    twins: dict[str, dict[str, object]]
    causes: dict[str, CauseEntry]
    mismatch: dict[Kind, list[str]]  # verdict of `staleness` -> causes and twins
    named: dict[str, list[str]]  # cause -> findings of other doctors

    def kind(self, name: str) -> Kind:
        """Verdict that `staleness` should give on a cause or twin."""
        return next((kind for kind, names in self.mismatch.items() if name in names), "age")


@dataclass(frozen=True)
class SickRun:
    """A run of the corpus; of a healthy twin the cause is the twin's name."""

    cause: str
    seed: int
    overrides: tuple[str, ...]

    @property
    def name(self) -> str:
        return f"{self.cause}-s{self.seed}"


def read_corpus() -> CorpusConfig:
    return CorpusConfig.model_validate(yaml.safe_load((CONF / "doctor.yaml").read_text()))


def runs_of(config: CorpusConfig) -> Iterator[SickRun]:
    """All runs, seed by seed."""
    for seed in range(config.seeds):
        for name, settings in config.twins.items():
            yield SickRun(name, seed, _overrides(config, seed, settings))
        for name, cause in config.causes.items():
            fault = {
                "rollout.engine._target_": "studies.doctor.faults.SickEngine",
                "+rollout.engine.fault": cause.engine,
                "+rollout.engine.onset": cause.onset,
            }
            settings = config.twins[cause.twin] | cause.set | (fault if cause.engine else {})
            yield SickRun(name, seed, _overrides(config, seed, settings))


def _overrides(config: CorpusConfig, seed: int, settings: dict[str, object]) -> tuple[str, ...]:
    return tuple(hydra_overrides(config.common | settings | {"seed": seed}))


def make_corpus(config: CorpusConfig, kept: KeptRuns, folder: Path) -> None:
    """Trains what is not kept yet, one by one. Raises ConfigError for kept runs of other settings."""
    runs = list(runs_of(config))
    kept.check({run.name: run.overrides for run in runs})
    missing = [run for run in runs if run.name not in kept]
    with counted("runs", len(missing)) as count:
        for run in missing:
            target = folder / run.name
            shutil.rmtree(target, ignore_errors=True)
            with open(os.devnull, "w") as nowhere, redirect_stdout(nowhere):
                record = fit(*run.overrides, f"run_folder={target}")
            kept.add(
                run.name,
                run.overrides,
                compact(record.columns | curves_of(target)),
                record.manifest.get("git_commit"),
            )
            count(run.name)


def compact(curves: Curves) -> dict[str, np.ndarray]:
    """Values that detectors read of each update, NaN if it was not measured, in a few digits."""
    length = 1 + max(step for steps, _ in curves.values() for step in steps)
    kept = {}
    for name in KEPT & {name for name, (steps, _) in curves.items() if steps}:
        values = np.full(length, math.nan)
        for step, value in zip(*curves[name], strict=True):
            values[step] = float(f"{value:.{DIGITS}g}")
        kept[name] = values
    return dict(sorted(kept.items()))


def expanded(compacted: dict[str, np.ndarray]) -> Curves:
    """The curves again."""
    return {
        name: (steps := [int(each) for each in np.flatnonzero(np.isfinite(values))], values[steps].tolist())
        for name, values in compacted.items()
    }
