"""Run folders for the tests of reports."""

import pytest
from tests.report.synthetic_runs import synthetic_run, write_run


@pytest.fixture
def make_run(tmp_path):
    """Factory of synthetic run folders below `tmp_path`: give `rows`, or `num_updates` and an algorithm."""

    def make(name="", rows=None, num_updates=40, algorithm="bapo", seed=0, **manifest):
        folder = tmp_path / (name or f"{algorithm}-replay-s{seed}-20260101")
        if rows is None:
            return synthetic_run(folder, algorithm, seed, num_updates, **manifest)
        return write_run(folder, rows, algorithm, seed, **manifest)

    return make
