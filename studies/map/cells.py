"""Cells of the map, and the files that hold what was measured in them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from bapo_lightning.system.errors import DataError, first_line
from studies.commands import write_arrays

FRESH = "fresh"  # the first method on data of the newest policy: what staleness costs is measured from here
FIRST_COMPARED = 1000  # seeds from here on are compared; those below decide which cells can tell anything


@dataclass(frozen=True)
class MapCell:
    world: str
    learning_rate: float
    staleness: int  # updates on a rollout batch
    options: tuple[tuple[str, float], ...]  # of the world, or keys of a run
    epochs: int = 1  # uses of a rollout batch
    lag: int = 0  # rollout batches between sampling and training
    batch: int = 0  # answers of an update, in enumerated worlds

    @property
    def name(self) -> str:
        parts = [self.world, *(f"{key.rpartition('.')[2]}={value:g}" for key, value in self.options)]
        parts += [f"lr={self.learning_rate:g}", f"staleness={self.staleness}"]
        parts += [f"epochs={self.epochs}"] * (self.epochs > 1) + [f"lag={self.lag}"] * (self.lag > 0)
        parts += [f"batch={self.batch}"] * (self.batch > 0)
        return "-".join(parts)


def ages_text(staleness: int, epochs: int, lag: int) -> str:
    """What makes the data of a cell old."""
    parts = [f"staleness {staleness}"]
    return ", ".join(parts + [f"{epochs} epochs"] * (epochs > 1) + [f"lag {lag}"] * (lag > 0))


@dataclass(frozen=True)
class Measured:
    """Curves of one method in one cell, each [seeds, measurements]; the reward is exact or held-out."""

    curves: Mapping[str, np.ndarray]

    @classmethod
    def read(cls, path: Path, gate: bool = False) -> Measured:
        """Reads what a job wrote: the seeds that are compared, or those of the gate. Raises DataError for a
        damaged file.
        """
        try:
            with np.load(path) as file:
                rows = (file["seeds"] < FIRST_COMPARED) == gate
                curves = {name: file[name][rows] for name in file.files if name != "seeds"}
            if curves["reward"].ndim != 2:
                raise ValueError("it has no curves of the reward")
        except Exception as error:  # zipfile and numpy have types of their own
            reason = f"{path} is damaged ({first_line(error)}); remove it, and the same command computes it"
            raise DataError(reason) from None
        return cls(curves)

    @property
    def area(self) -> np.ndarray:
        return self.curves["reward"].mean(1)

    @property
    def final(self) -> np.ndarray:
        return self.curves["reward"][:, -1]

    def mean(self, name: str) -> float | None:
        """Mean of a curve over seeds and training, without undefined values; None where all are."""
        values = self.curves[name]
        return None if np.isnan(values).all() else float(np.nanmean(values))

    def at(self, name: str, share: float) -> np.ndarray:
        """A curve after this share of training, [seeds]."""
        values = self.curves[name]
        return values[:, min(int(share * values.shape[1]), values.shape[1] - 1)]


def write_measured(path: Path, seeds: Sequence[int], curves: Mapping[str, np.ndarray]) -> None:
    """Writes what `Measured.read` reads."""
    write_arrays(path, {"seeds": np.array(seeds), **curves})


def measured_file(folder: Path, cell: MapCell, method: str) -> Path:
    """Where the curves of a method are; those of fresh data serve all stalenesses."""
    if method == FRESH:
        cell = replace(cell, staleness=1, epochs=1, lag=0)
    return folder / "cells" / cell.name / f"{method}.npz"


def read_measured(folder: Path, cell: MapCell, method: str, gate: bool = False) -> Measured:
    """Reads the curves of a method in a cell; see `Measured.read`."""
    return Measured.read(measured_file(folder, cell, method), gate)
