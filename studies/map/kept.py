"""Curves of training runs that are kept in the repository, a line each, so that no run is made twice.

A study of a real model takes longer than a machine is at hand. A line is written when its run ends; another
machine goes on with the runs that have none.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NotRequired

import numpy as np
from typing_extensions import TypedDict

from bapo_lightning.system.errors import ConfigError
from bapo_lightning.system.run_folder.record import read_lines

Curves = dict[str, np.ndarray]


class Line(TypedDict):
    """A run that is kept."""

    run: str
    commit: NotRequired[str | None]  # that made it, where the run knew it
    overrides: list[str]
    curves: dict[str, list[float | None]]


class KeptRuns:
    """The lines of a file, by the names of their runs."""

    def __init__(self, path: Path) -> None:
        """Raises DataError: a line is damaged."""
        self.path = path
        self._runs: dict[str, tuple[list[str], Curves]] = {}
        for line in read_lines(path, Line, "remove the line, and its run is made again"):
            curves = {name: np.array(values, float) for name, values in line["curves"].items()}
            self._runs[line["run"]] = line["overrides"], curves

    def __contains__(self, run: str) -> bool:
        return run in self._runs

    def curves(self, run: str) -> Curves:
        return self._runs[run][1]

    def check(self, wanted: Mapping[str, Sequence[str]]) -> None:
        """Raises ConfigError where a kept run had other settings than are wanted of it."""
        problems = [
            f"{run} is kept in {self.path} with {', '.join(sorted({*self._runs[run][0]} ^ {*overrides}))}"
            for run, overrides in wanted.items()
            if run in self and {*self._runs[run][0]} != {*overrides}
        ]
        if problems:
            raise ConfigError([*problems, "kept=ANOTHER/FILE begins anew"])

    def add(self, run: str, overrides: Sequence[str], curves: Curves, commit: str | None = None) -> None:
        plain = {
            name: [float(value) if math.isfinite(value) else None for value in values.tolist()]
            for name, values in curves.items()
        }
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(
                json.dumps({"run": run, "commit": commit, "overrides": [*overrides], "curves": plain}) + "\n"
            )
        self._runs[run] = [*overrides], curves
