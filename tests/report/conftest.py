"""Run folders for the tests of reports."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from tests.report.synthetic_runs import RunMaker, synthetic_row, write_run


@pytest.fixture
def make_run(tmp_path: Path) -> RunMaker:
    """Factory of synthetic run folders below `tmp_path`: give `rows`, or `num_updates` and an algorithm."""

    def make(
        name: str = "",
        rows: list[dict[str, Any]] | None = None,
        num_updates: int = 40,
        algorithm: str = "bapo",
        seed: int = 0,
        **manifest: Any,
    ) -> Path:
        noise = random.Random(f"{algorithm} {seed} {manifest.get('staleness')}")
        rows = (
            [synthetic_row(step, num_updates, algorithm, noise) for step in range(num_updates)]
            if rows is None
            else rows
        )
        folder = tmp_path / (name or f"{algorithm}-replay-s{seed}-20260101")
        return write_run(folder, rows, algorithm, seed, **manifest)

    return make
