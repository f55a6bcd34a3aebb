"""`--share=1/3`: all refusals, which take seconds, and so many rows; `auto/3` takes turns by the day."""

import pytest

from bapo_lightning.cli.rehearse import share_of


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--share", default="1/1", help="N/M: the Nth of M parts of its rows; auto/M: by the day")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    rows = [item.nodeid for item in items if "refused" not in item.nodeid]
    left_out = set(rows) - set(share_of(rows, config.getoption("--share")))
    config.hook.pytest_deselected(items=[item for item in items if item.nodeid in left_out])
    items[:] = [item for item in items if item.nodeid not in left_out]
