import pytest
from tests.cli.evaluations import MODEL, SMALL, run
from tests.commands import train_to_end


@pytest.fixture(scope="session")
def trained(tmp_path_factory):
    """A finished run with two checkpoints, validated on four problems; its output lies beside it."""
    folder = tmp_path_factory.mktemp("trained") / "run"
    printed = train_to_end(folder, 2, "callbacks.checkpoint.every=8")
    folder.with_name("printed.txt").write_text(printed)
    return folder


@pytest.fixture(scope="session")
def whole(tmp_path_factory):
    """An evaluation of the shipped model that nothing interrupted."""
    folder = tmp_path_factory.mktemp("whole") / "evaluation"
    run(f"checkpoint={MODEL}", *SMALL, f"run_folder={folder}")
    return folder
