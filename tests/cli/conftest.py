"""A short run and an evaluation that several files look at."""

import pytest
from tests.cli.evaluations import MODEL, SMALL, run
from tests.commands import train
from tests.report.conftest import make_run

__all__ = ["make_run"]


@pytest.fixture(scope="session")
def trained(tmp_path_factory):
    """A finished run with two checkpoints, validated with four answers to each of four problems."""
    folder = tmp_path_factory.mktemp("trained") / "run"
    done = train("scale.num_rollout_batches=2", "callbacks.checkpoint.every=8", f"run_folder={folder}")
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="session")
def whole(tmp_path_factory):
    """An evaluation of the shipped model that nothing interrupted."""
    folder = tmp_path_factory.mktemp("whole") / "evaluation"
    run(f"checkpoint={MODEL}", *SMALL, f"run_folder={folder}")
    return folder
