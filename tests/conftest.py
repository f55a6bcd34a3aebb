"""Settings that every test shares, set before a library that reads them is imported; processes started by
tests inherit them.
"""

import os
import signal
from collections.abc import Sequence
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
    text = "of drills and of the matrix's rows, N/M: the Nth of M parts; auto/M: another one each day"
    parser.addoption("--share", default="1/1", help=text)


def pytest_configure(config: pytest.Config) -> None:
    text = config.getoption("--share")
    count = text.removeprefix("auto/")
    if count != text and count.isdigit():  # once for all workers, whatever the time
        config.option.share = f"{_share_of(range(1, int(count) + 1), text)[0]}/{count}"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    parts = [item for item in items if "drill" in item.keywords]
    kept = {id(item) for item in _share_of(parts, config.getoption("--share"))}
    left_out = [item for item in parts if id(item) not in kept]
    config.hook.pytest_deselected(items=left_out)
    gone = {id(item) for item in left_out}
    items[:] = [item for item in items if id(item) not in gone]


def _share_of(items: Sequence[T], text: str) -> list[T]:
    from bapo_lightning.cli.rehearse import share_of  # after the settings above
    from bapo_lightning.errors import ConfigError

    try:
        return share_of(items, text, "--share=")
    except ConfigError as error:
        raise pytest.UsageError("; ".join(error.problems)) from None
