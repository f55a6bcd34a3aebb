"""`--share=1/3`: only so many of the rows and refusals; `auto/3` takes turns by the day."""

import pytest

from bapo_lightning.cli.rehearse import share_of


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--share", default="1/1", help="N/M: the Nth of M parts of the matrix; auto/M: by the day"
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    kept = set(share_of([item.nodeid for item in items], config.getoption("--share")))
    config.hook.pytest_deselected(items=[item for item in items if item.nodeid not in kept])
    items[:] = [item for item in items if item.nodeid in kept]
