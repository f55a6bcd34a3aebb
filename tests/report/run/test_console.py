"""What a person reads on the console, at several widths and without a terminal."""

import io
import json
import re

import pytest
import yaml
from rich.console import Console

from bapo_lightning.report.run.console import GO_ON, print_summary
from bapo_lightning.report.run.summary import write_summary
from bapo_lightning.system.run_folder.checkpoint import checkpoint_name
from bapo_lightning.system.run_folder.find import SWEEP_RECORD
from bapo_lightning.tools.comparison.console import print_comparison
from bapo_lightning.tools.comparison.runs import COLUMNS
from bapo_lightning.tools.comparison.settings import collect
from bapo_lightning.tools.comparison.table import compare
from bapo_lightning.tools.view.page import View


def summary_text(folder, width=80, **options):
    console = Console(file=io.StringIO(), width=width, color_system=None, **options)
    print_summary(write_summary(folder), folder, console)
    return "".join(f"{line.rstrip()}\n" for line in console.file.getvalue().splitlines())


def comparison_text(comparison, width=160):
    console = Console(file=io.StringIO(), width=width, color_system=None)
    print_comparison(comparison, console)
    text = console.file.getvalue()
    assert "\u2026" not in text, "a number is cut"
    return text


def short_runs(make_run, algorithms, num_seeds):
    cells = [(name, seed) for name in algorithms for seed in range(num_seeds)]
    return [make_run(f"{name}-{seed}", algorithm=name, seed=seed, num_updates=10) for name, seed in cells]


def test_the_summary_names_what_matters(make_run):
    folder = make_run("run")
    text = summary_text(folder, 120)
    assert "bapo, replay, staleness 8, seed 0: finished after 40 updates in 1 min 15 s" in text
    labels = ("reward", "entropy", "grad norm", "positive share", "bounds", "time", "throughput", "drops")
    assert all(f"\n  {label} " in text for label in (*labels, "sums/avg@8"))
    assert f"{folder}/\n" in text


@pytest.mark.parametrize(("width", "is_terminal"), [(120, False), (60, True), (80, True)])
def test_the_summary_fits_and_breaks_between_values(make_run, width, is_terminal):
    folder = make_run("run")
    text = summary_text(folder, width, force_terminal=is_terminal)
    assert all(len(line) <= width for line in text.splitlines() if str(folder) not in line)
    assert re.search(r"target met in\s\d+%", text) and "target met in\n" not in text
    assert all(f"{name}\n" not in text for name in ("mean", "max", "low", "high", "rollout", "update"))


@pytest.mark.parametrize(("status", "says"), [("interrupted", True), ("failed", True), ("finished", False)])
def test_a_run_that_did_not_end_says_how_to_go_on(make_run, status, says):
    folder = make_run(status, num_updates=4, status=status)
    assert GO_ON not in summary_text(folder)  # there is nothing to go on from
    (folder / "checkpoints" / checkpoint_name(4)).mkdir(parents=True)
    assert (f"to continue     {GO_ON}" in summary_text(folder)) == says


def test_all_epochs_are_summarised_zeros_left_out_and_the_next_command_is_named(make_run, monkeypatch):
    row = {"train/reward": 0.5, "val/sums/avg@4": 0.0, "val/sums/failed_fraction": 0.0}
    folder = make_run("a run", rows=[{"step": n, **row, "val/sums/cut_fraction": 0.1} for n in range(4)])
    fates = [(epoch, "trained") for epoch in range(9) for _ in range(2)] + [(9, "trained"), (9, "dropped")]
    ledger = [{"epoch": epoch, "problem": "1+1=", "fate": fate} for epoch, fate in fates]
    (folder / "ledger.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ledger))
    text = summary_text(folder, 120)
    assert re.search(r"\n  epochs +0 to 8: 2 trained in each, 9: 1 trained and 1 dropped\n", text)
    assert "failed_fraction" not in text and "sums/cut_fraction" in text and "sums/avg@4" in text
    assert f"make view RUN='{folder}'\n" in text
    monkeypatch.chdir(folder)  # no clone
    assert f"python -m bapo_lightning view '{folder}'\n" in summary_text(folder, 120)
    alternating = [{"epoch": n, "problem": "x", "fate": f"fate{n % 2}"} for n in range(20)]
    (folder / "ledger.jsonl").write_text("".join(json.dumps(row) + "\n" for row in alternating))
    assert "0 to 15: see summary.json, 16: 1 fate0, 17: 1 fate1, 18: 1 fate0" in summary_text(folder, 120)


def test_a_run_that_a_callback_stopped_says_which_one_and_of_how_many_updates(make_run):
    folder = make_run("run", num_updates=7, status="stopped", stopped_by="EarlyStopping")
    config = yaml.safe_load((folder / "config.yaml").read_text()) | {"scale": {"num_rollout_batches": 60}}
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    (folder / "checkpoints" / checkpoint_name(7)).mkdir(parents=True)
    text = summary_text(folder)
    assert "seed 0: stopped by EarlyStopping after 7 of 480 updates in" in text
    assert f"to continue     {GO_ON}, without what stopped it" in text
    assert "stopped by EarlyStopping" in View(folder).write(5.0)[0].read_text()


@pytest.mark.parametrize(("max_age", "line"), [(9, "\n  age bound       9, reached 7\n"), (None, "")])
def test_the_age_bound_stands_next_to_the_age_that_was_reached(make_run, max_age, line):
    folder = make_run("run")
    config = yaml.safe_load((folder / "config.yaml").read_text()) | {"regime": {"max_age": max_age}}
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    text = summary_text(folder)
    assert line in text and ("reached" in text) == bool(line)


@pytest.mark.parametrize("searched", [{}, {"bapo/target_met": 1.0}])
def test_a_run_that_searches_no_bounds_has_no_line_about_the_search(make_run, searched):
    row = {"bapo/clip_low": 0.8, "bapo/clip_high": 1.2, "bapo/positive_share": 0.4, **searched}
    text = summary_text(make_run(rows=[{"step": step, **row} for step in range(4)]), 120)
    assert "  bounds" in text and ("target met in" in text) == bool(searched)
    assert searched or "raised" not in text


def test_irregularities_are_reported(make_run):
    row = {"step": 0, "train/grad_norm": float("inf"), "train/skipped_updates": 1}
    text = summary_text(make_run(rows=[{**row, "rollout/evicted": 2, "rollout/cut": 0}]))
    assert "irregular       1 skipped update, 1 non-finite value" in text
    assert "drops           2 evicted\n" in text


@pytest.mark.parametrize(("width", "num_seeds"), [(80, 1), (80, 3), (160, 3)])
def test_the_table_fits_without_cutting_a_number(make_run, width, num_seeds):
    folders = short_runs(make_run, ("grpo", "bapo", "bapo_authors_code"), num_seeds)
    text = comparison_text(compare(collect(folders)), width)
    assert f"{3 * num_seeds} of {3 * num_seeds} runs" in text and "Difference to grpo" in text
    heads = [line.split()[-1] for line in text.splitlines() if line.startswith("algorithm ")]
    assert heads == (["raised"] * 2 if width == 160 else ["share", "raised"] * 2)  # in two parts each
    assert all(len(line) <= width for line in text.splitlines())


@pytest.mark.parametrize("width", [60, 80])
def test_where_settings_do_not_fit_they_get_numbers_and_no_name_is_broken(make_run, width):
    folders = [make_run("authors", algorithm="bapo_authors_code", num_updates=10)]
    for target in (0.4, 0.5):
        folders.append(make_run(f"bapo-{target}", algorithm="bapo", num_updates=10))
        config = yaml.safe_load((folders[-1] / "config.yaml").read_text())
        config["algorithm"]["positive_share_target"] = target
        (folders[-1] / "config.yaml").write_text(yaml.safe_dump(config))
    lines = [line.rstrip() for line in comparison_text(compare(collect(folders)), width).splitlines()]
    assert all(len(line) <= width for line in lines)
    assert {f"  bapo {n}: positive_share_target=0.{n + 3}" for n in (1, 2)} <= set(lines)
    heads = [line for line in lines if line.startswith("algorithm ")]
    names = [line.split("  ")[0] for line in lines if line.startswith("bapo")]
    assert {*names} == {"bapo_authors_code", "bapo 1", "bapo 2"} and len(heads) == (4 if width == 80 else 6)


def test_a_star_needs_the_corrected_p_value(make_run):
    comparison = compare(collect(short_runs(make_run, ("grpo", "bapo"), 4)))
    (cell,) = filter(comparison.is_compared, comparison.cells)
    results = [comparison.result(cell, column) for column in COLUMNS]
    num_shown = sum(result.verdict in ("more", "less") for result in results)
    lines = comparison_text(comparison).splitlines()
    (row,) = (line for line in lines if line.startswith("bapo") and "+" in line)
    assert row.count("*") == num_shown > 0
    assert num_shown <= sum(result.p_value is not None and result.p_value < 0.05 for result in results)


def test_one_seed_has_no_interval_and_a_left_out_run_is_named(make_run):
    folders = [make_run("good", num_updates=4), make_run("bad", seed=1, num_updates=4, status="failed")]
    text = comparison_text(compare(collect(folders)))
    assert "1 of 2 runs" in text and "\u00b1n/a" in text
    assert f"left out: {folders[1]}: its status is 'failed' after 4 updates" in text


def test_runs_that_a_sweep_has_not_begun_are_counted_in_one_line(make_run):
    folder = make_run("good", num_updates=4)
    (folder.parent / SWEEP_RECORD).write_text("{}")
    warnings = compare(collect([folder, folder.parent / "later", folder.parent / "last"])).warnings
    assert "left out: 2 runs of this sweep, which have not started" in warnings
    assert not any("later" in warning for warning in warnings)
