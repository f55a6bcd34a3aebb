"""An evaluation on the console, at several widths, and how far it is."""

import io
from types import SimpleNamespace

import pytest
from rich.console import Console

from bapo_lightning.tools.evaluation.comparison import ComparisonRow
from bapo_lightning.tools.evaluation.console import EvaluationProgress, followed, print_results
from bapo_lightning.tools.evaluation.results import Estimate
from bapo_lightning.tools.evaluation.table import print_evaluations
from bapo_lightning.types import ScoreStatus

SETS = ["aime24", "aime25", "math500", "olympiadbench"]


def console(width):
    return Console(file=io.StringIO(), width=width, color_system=None)


def lines(printed):
    return [line.rstrip() for line in printed.file.getvalue().splitlines()]


def samples(count, status=ScoreStatus.CORRECT):
    score = SimpleNamespace(status=status)
    return [SimpleNamespace(rollout=SimpleNamespace(length=10), score=score)] * count


@pytest.mark.parametrize(("width", "parts"), [(40, 4), (60, 2), (120, 1)])
def test_sets_that_do_not_fit_side_by_side_stand_below_each_other(width, parts):
    shown = console(width)
    found = {"avg@16": {"value": 0.467, "low": 0.284, "high": 0.65}}
    entry = {"num_problems": 30, "metrics": found, "verdicts": {"correct": 224}}
    print_results({"name": "run", "temperature": 0.6, "k": 16, "sets": dict.fromkeys(SETS, entry)}, shown)
    rows = [line for line in lines(shown) if line.startswith("avg@16")]
    assert len(rows) == parts
    assert sum(row.count("46.7 [28.4, 65.0]") for row in rows) == len(SETS)
    assert all(len(line) <= width for line in lines(shown))


@pytest.mark.parametrize("width", [60, 80, 160])
def test_names_that_leave_no_room_stand_above_the_tables(width):
    names = [f"bapo-replay-s{seed}-20261123-140222-update000080" for seed in range(2)]
    found = dict.fromkeys(("avg@16", "pass@16", "maj@16"), Estimate(0.467, 0.284, 0.65))
    rows = [ComparisonRow(name, "aime24", 30, 16, found, found) for name in names]
    shown = console(width)
    print_evaluations(rows, names[0], [], shown)
    assert all(len(line) <= width for line in lines(shown) if "+-" not in line)
    assert (f"  (1) {names[0]}" in lines(shown)) == (width < 160)
    assert shown.file.getvalue().count("+46.7* [+28.4, +65.0]") == 6
    assert "\u2026" not in shown.file.getvalue()


def test_progress_is_a_bar_with_numbers_and_counts_this_session_alone():
    progress = EvaluationProgress(100, 20)
    progress.add(samples(30))
    progress.add(samples(10, ScoreStatus.WRONG))
    shown = console(80)
    shown.print(progress)
    bar, numbers = lines(shown)
    assert bar.startswith("samples 60/100 ") and numbers.endswith("tokens/s, 75.0 % right")


def test_in_a_pipe_it_is_reported_ten_times(capsys):
    with followed(100, 0) as progress:
        for _ in range(25):
            progress.add(samples(4))
    told = capsys.readouterr().out.splitlines()
    assert len(told) == 10 and told[0].startswith("12 of 100 samples, ")
