"""What a person reads on the console, at several widths and without a terminal."""

import io
import re

import pytest
import yaml
from rich.console import Console

from bapo_lightning.report.comparison.console import print_comparison
from bapo_lightning.report.comparison.runs import COLUMNS
from bapo_lightning.report.comparison.settings import collect
from bapo_lightning.report.comparison.table import compare
from bapo_lightning.report.run.console import GO_ON, print_summary
from bapo_lightning.report.run.summary import write_summary
from bapo_lightning.run_folder.find import SWEEP_RECORD


def piped_console(width):
    return Console(file=io.StringIO(), width=width, color_system=None)


def printed(console):
    return console.file.getvalue()


@pytest.mark.parametrize("width", [80, 120])
def test_the_summary_fits_and_names_what_matters(make_run, width):
    folder = make_run("run")
    console = piped_console(width)
    print_summary(write_summary(folder), folder, console)
    text = printed(console)
    assert "bapo, replay, staleness 8, seed 0: finished after 40 updates in 1 min 15 s" in text
    for label in (
        "reward",
        "entropy",
        "grad norm",
        "positive share",
        "bounds",
        "time",
        "throughput",
        "drops",
        "sums/avg@8",
    ):
        assert f"\n  {label} " in text
    assert f"{folder}/\n" in text
    assert all(len(line) <= width for line in text.splitlines() if str(folder) not in line)


@pytest.mark.parametrize("width", [60, 72, 80])
def test_on_a_terminal_the_summary_breaks_between_values(make_run, width):
    folder = make_run("run")
    console = Console(file=io.StringIO(), width=width, color_system=None, force_terminal=True)
    print_summary(write_summary(folder), folder, console)
    lines = [line.rstrip() for line in printed(console).splitlines()]
    assert all(len(line) <= width for line in lines if str(folder) not in line)
    values = "\n".join(lines)
    assert re.search(r"target met in\s\d+%", values) and "target met in\n" not in values
    assert all(f"{name}\n" not in values for name in ("mean", "max", "low", "high", "rollout", "update"))


def test_the_summary_of_nothing_is_short_and_honest(make_run):
    folder = make_run("run", rows=[], status="interrupted", wall_seconds=0)
    console = piped_console(80)
    print_summary(write_summary(folder), folder, console)
    text = printed(console)
    assert "bapo, replay, staleness 8, seed 0: interrupted after 0 updates in 0.0 s" in text
    assert "reward" not in text and "drops" not in text


def test_a_run_that_did_not_end_says_how_to_go_on(make_run):
    for status, says in [("interrupted", True), ("failed", True), ("finished", False)]:
        console = piped_console(80)
        print_summary(
            write_summary(folder := make_run(status, num_updates=4, status=status)), folder, console
        )
        assert (f"to go on        {GO_ON}" in printed(console)) == says


def test_a_run_that_searches_no_bounds_has_no_line_about_the_search(make_run):
    row = {"bapo/clip_low": 0.8, "bapo/clip_high": 1.2, "bapo/positive_share": 0.4}
    for searched, says in [({}, False), ({"bapo/target_met": 1.0}, True)]:
        console = piped_console(120)
        rows = [{"step": step, **row, **searched} for step in range(4)]
        print_summary(write_summary(folder := make_run(f"run-{says}", rows=rows)), folder, console)
        text = printed(console)
        assert "  bounds" in text and ("target met in" in text) == says
        assert says or "raised" not in text


def test_irregularities_are_told(make_run):
    rows = [
        {
            "step": 0, "train/grad_norm": float("inf"), "train/skipped_updates": 1, "rollout/evicted": 2,
            "rollout/cut": 0,
        }
    ]  # fmt: skip
    console = piped_console(80)
    print_summary(write_summary(folder := make_run(rows=rows)), folder, console)
    assert "irregular       1 skipped update, 1 non-finite value" in printed(console)
    assert (
        "drops           2 evicted\n"
        in "\n".join(line.rstrip() for line in printed(console).splitlines()) + "\n"
    )


@pytest.mark.parametrize("width", [80, 120, 160])
@pytest.mark.parametrize("num_seeds", [1, 3])
def test_the_table_fits_without_cutting_a_number(make_run, width, num_seeds):
    cells = [(name, seed) for name in ("grpo", "bapo", "bapo_authors_code") for seed in range(num_seeds)]
    folders = [make_run(f"{name}-{seed}", algorithm=name, seed=seed, num_updates=10) for name, seed in cells]
    console = piped_console(width)
    print_comparison(compare(collect(folders)), console)
    text = printed(console)
    assert f"{3 * num_seeds} of {3 * num_seeds} runs" in text
    assert "Difference to grpo" in text
    assert "\u2026" not in text
    assert [line.split()[-1] for line in text.splitlines() if line.startswith("algorithm ")] == [
        "raised",
        "raised",
    ]
    assert all(len(line) <= width for line in text.splitlines())


@pytest.mark.parametrize("width", [60, 80])
def test_where_settings_do_not_fit_they_get_numbers_and_no_name_is_broken_inside(make_run, width):
    folders = []
    for target in (0.4, 0.5):
        folders.append(make_run(f"bapo-{target}", algorithm="bapo", num_updates=10))
        config = yaml.safe_load((folders[-1] / "config.yaml").read_text())
        config["algorithm"]["positive_share_target"] = target
        (folders[-1] / "config.yaml").write_text(yaml.safe_dump(config))
    folders.append(make_run("authors", algorithm="bapo_authors_code", num_updates=10))
    console = piped_console(width)
    print_comparison(compare(collect(folders)), console)
    lines = [line.rstrip() for line in printed(console).splitlines()]
    assert all(len(line) <= width for line in lines) and "\u2026" not in printed(console)
    assert "  bapo 1: positive_share_target=0.4" in lines and "  bapo 2: positive_share_target=0.5" in lines
    assert [line.split()[0] for line in lines if line.startswith(("bapo_", "authors_", "code"))][:3] == [
        "bapo_",
        "authors_",
        "code",
    ]
    heads = [line for line in lines if line.startswith("algorithm ")]
    assert len(heads) == (2 if width == 80 else 4)  # at 60 columns each table has two parts


def test_a_star_needs_the_corrected_p_value(make_run):
    folders = [
        make_run(f"{name}-{seed}", algorithm=name, seed=seed, num_updates=10)
        for name in ("grpo", "bapo")
        for seed in range(4)
    ]
    comparison = compare(collect(folders))
    console = piped_console(160)
    print_comparison(comparison, console)
    (cell,) = filter(comparison.is_compared, comparison.cells)
    results = [comparison.result(cell, column) for column in COLUMNS]
    num_shown = sum(result.verdict in ("more", "less") for result in results)
    (row,) = (line for line in printed(console).splitlines() if line.startswith("bapo") and "+" in line)
    assert row.count("*") == num_shown > 0
    uncorrected = sum(result.p_value is not None and result.p_value < 0.05 for result in results)
    assert num_shown <= uncorrected


def test_one_seed_has_no_interval_and_a_left_out_run_is_named(make_run):
    folders = [make_run("good", num_updates=4), make_run("bad", seed=1, num_updates=4, status="failed")]
    console = piped_console(160)
    print_comparison(compare(collect(folders)), console)
    text = printed(console)
    assert "1 of 2 runs" in text
    assert "\u00b1n/a" in text
    assert f"left out: {folders[1]}: its status is 'failed' after 4 updates" in text


def test_runs_that_a_sweep_has_not_begun_are_counted_in_one_line(make_run):
    folder = make_run("good", num_updates=4)
    (folder.parent / SWEEP_RECORD).write_text("{}")
    warnings = compare(collect([folder, folder.parent / "later", folder.parent / "last"])).warnings
    assert "left out: 2 of the runs of this sweep, which have not begun" in warnings
    assert not any("later" in warning for warning in warnings)
