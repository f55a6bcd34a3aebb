"""Settings of all tests and of processes they start, set before a library reads them."""

import os
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

import hypothesis
import pytest

T = TypeVar("T")

for name, value in {
    "OMP_NUM_THREADS": "1",  # the tensors are tiny: a second thread only waits
    "HF_HUB_OFFLINE": "1",  # a test that reaches for the network is wrong, and is to fail at once
    "WANDB_MODE": "offline",
    "MPLBACKEND": "Agg",
    "RAY_USAGE_STATS_ENABLED": "0",
}.items():
    os.environ.setdefault(name, value)

# Under `make test ARGS=...`, a make that a test starts would take itself for a part of that one: it would
# have its ARGS, and say which directory it enters.
for name in ("MAKELEVEL", "MAKEFLAGS", "MFLAGS", "ARGS"):
    os.environ.pop(name, None)

# The same cases in every run, and no time limit per case: a loaded machine must not fail a property.
hypothesis.settings.register_profile("repository", deadline=None, derandomize=True, database=None)
hypothesis.settings.load_profile("repository")

# Tests interrupt processes, and a shell that starts them in the background lets all of them ignore that.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    text = "N/M: the Nth of M parts of slow tests, drills, tests of vLLM and rows of the matrix; 9/8 is 1/8"
    parser.addoption("--share", default="1/1", help=text)
    text = "git revision; slow tests run in any share if they or their folder of the package changed since"
    parser.addoption("--since", default=None, help=text)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    changed = _changes(config.rootpath, config.getoption("--since"))
    parts = [item for item in items if _is_long(item) and not _is_touched(item, changed)]
    kept = {id(item) for item in _share_of(parts, config.getoption("--share"))}
    left_out = [item for item in parts if id(item) not in kept]
    config.hook.pytest_deselected(items=left_out)
    gone = {id(item) for item in left_out}
    items[:] = [item for item in items if id(item) not in gone]


def _is_long(item: pytest.Item) -> bool:
    return bool({"slow", "drill"} & set(item.keywords)) or "rollout/vllm/" in item.nodeid


def _is_touched(item: pytest.Item, changed: set[str] | None) -> bool:
    file = item.nodeid.partition("::")[0]
    folder = file.removeprefix("tests/").rpartition("/")[0]
    return "drill" not in item.keywords and (changed is None or file in changed or folder in changed)


def _changes(root: Path, revision: str | None) -> set[str] | None:
    # Tests that changed, and folders of the package by the names that they have in both; None: git does not
    # know the revision.
    if revision is None:
        return set()
    command = ["git", "-C", str(root), "diff", "--name-only", revision, "--", "src", "tests"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        return None
    package = "src/bapo_lightning/"
    names = done.stdout.split()
    return {n.removeprefix(package).rpartition("/")[0] if n.startswith(package) else n for n in names}


def _share_of(items: Sequence[T], text: str) -> list[T]:
    from bapo_lightning.system.errors import ConfigError
    from bapo_lightning.tools.commands.rehearse import share_of  # after the settings above

    try:
        return share_of(items, text, "--share=")
    except ConfigError as error:
        raise pytest.UsageError("; ".join(error.problems)) from None
