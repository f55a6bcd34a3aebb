"""Run folders for the tests of reports."""

import random

import pytest
from tests.report.synthetic_runs import synthetic_row, write_run


@pytest.fixture
def make_run(tmp_path):
    """Factory of synthetic run folders below `tmp_path`: give `rows`, or `num_updates` and an algorithm."""

    def make(name="", rows=None, num_updates=40, algorithm="bapo", seed=0, **manifest):
        if rows is None:
            noise = random.Random(f"{algorithm} {seed} {manifest.get('staleness')}")
            rows = [synthetic_row(step, num_updates, algorithm, noise) for step in range(num_updates)]
        folder = tmp_path / (name or f"{algorithm}-replay-s{seed}-20260101")
        return write_run(folder, rows, algorithm, seed, **manifest)

    return make
