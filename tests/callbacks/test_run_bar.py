"""The bar of a run, at every width."""

import io
from types import SimpleNamespace

import pytest
from rich.console import Console

from bapo_lightning.callbacks.run_bar import RunBar

NUMBERS = {"reward": 0.5, "entropy": 0.25, "share": float("nan"), "high": 3.0, "own": "a text"}


def lines(updates, width=80, before=0):
    bar, trainer = RunBar(48, before, 8), SimpleNamespace(progress_bar_metrics=NUMBERS)
    bar.on_train_start(trainer, None)
    for index in range(updates):
        bar.on_train_batch_end(trainer, None, None, None, index)
    console = Console(file=io.StringIO(), width=width, color_system=None)
    console.print(bar)
    return console.file.getvalue().splitlines()


def test_it_counts_updates_knows_those_of_earlier_sessions_and_has_a_dash_for_no_number():
    assert lines(0, before=16)[0].startswith("update 16/48 ")
    first, second = lines(17)
    assert first.startswith("update 17/48 ")
    assert second == "reward 0.500  entropy 0.250  share -  high 3.000  own a text"


@pytest.mark.parametrize("width", [20, 40, 60, 72, 80, 120])
def test_no_line_is_wider_than_the_terminal_or_wrapped(width):
    shown = lines(17, width)
    assert len(shown) == 2 and all(len(line) <= width for line in shown)
    assert shown[1].startswith("reward 0.500") and not shown[1].endswith(" ")
