"""Settings and conditions of runs, and that no run disappears without a word."""

import csv
import json
from itertools import product

import pytest

from bapo_lightning.report.metrics import EXPECTED
from bapo_lightning.system.errors import DataError
from bapo_lightning.tools.comparison.files import write_numbers, write_table
from bapo_lightning.tools.comparison.runs import condition_of
from bapo_lightning.tools.comparison.settings import collect
from bapo_lightning.tools.comparison.table import compare


@pytest.fixture
def constant_run(make_run):
    def make(algorithm, seed=0, reward=0.9, name="", config=None, **manifest):
        rows = [{"step": step, "train/reward": value} for step, value in enumerate((0.5, reward))]
        own = {"rows": rows, "algorithm": algorithm, "seed": seed, **manifest}
        folder = make_run(name or f"{algorithm}-{seed}", **own)
        if config is not None:
            (folder / "config.yaml").write_text(json.dumps(config))
        return folder

    return make


def final_reward(comparison, setting):
    return comparison.results[setting, "8", "train/reward", "final"]


def test_staleness_separates_rows_and_references(constant_run):
    comparison = compare(collect([constant_run("bapo", staleness=1), constant_run("grpo", staleness=8)]))
    assert list(comparison.cells) == [("bapo", "1"), ("grpo", "8")]
    assert not any(map(comparison.is_compared, comparison.cells))


def test_unusable_runs_are_listed_with_their_reason(make_run, constant_run, tmp_path):
    folders = [
        constant_run("bapo", 0), constant_run("bapo", 1, status="failed"),
        constant_run("bapo", 2, staleness=None), make_run("mute", rows=[{"step": 0}], seed=3),
        constant_run("bapo", 4, status="stopped", stopped_by="EarlyStopping"), tmp_path / "nowhere",
    ]  # fmt: skip
    runs = collect(folders)
    comparison = compare(runs)
    assert comparison.cells == {("bapo", "8"): [runs[0]]}
    assert [run.problem for run in runs[:5]] == [
        None, "its status is 'failed' after 2 updates, not 'finished'",
        "its manifest does not say its staleness", "it recorded no reward",
        "it was stopped by EarlyStopping after 2 updates",
    ]  # fmt: skip
    assert "does not exist" in str(runs[5].problem)
    assert comparison.left_out == runs[1:] and len(comparison.warnings) == 5


def test_of_two_runs_of_one_seed_the_later_counts(constant_run):
    early = constant_run("bapo", 0, 0.1, "early", started_at="2026-01-01T00:00:00")
    late = constant_run("bapo", 0, 0.9, "late", started_at="2026-01-02T00:00:00")
    runs = collect([late, early])
    assert [run.problem for run in runs] == [None, "replaced by the later run late"]
    assert final_reward(compare(runs), "bapo").by_seed == {0: 0.9}


def test_runs_of_one_algorithm_with_different_values_are_settings_of_their_own(constant_run):
    folders = []
    for (low, high), reward in {(0.8, 1.2): 0.5, (0.8, 1.5): 0.7, (0.5, 1.2): 0.4}.items():
        for seed in (0, 1):
            algorithm = {"name": "grpo", "bounds": {"low": low, "high": high}}
            config = {"seed": seed, "data": {"shuffle": seed}, "algorithm": algorithm}
            folders.append(constant_run("grpo", seed, reward, f"{low}-{high}-{seed}", config))
    runs = collect(folders)
    comparison = compare(runs, "grpo low=0.8 high=1.2")
    assert [(cell[0], [run.seed for run in members]) for cell, members in comparison.cells.items()] == [
        ("grpo low=0.5 high=1.2", [0, 1]),
        ("grpo low=0.8 high=1.2", [0, 1]),
        ("grpo low=0.8 high=1.5", [0, 1]),
    ]
    assert [comparison.is_compared(cell) for cell in comparison.cells] == [True, False, True]
    assert final_reward(comparison, "grpo low=0.8 high=1.5").difference.mean == pytest.approx(0.2)
    assert comparison.warnings == []
    refused = r"--reference dapo: nothing finished has this name; it takes grpo low=0.5 high=1.2, "
    with pytest.raises(DataError, match=refused):
        compare(runs, "dapo")


def test_of_keys_that_differ_together_the_setting_names_the_one_nearest_to_the_root(constant_run):
    folders = []
    for target in (16, 4):
        config = {"seed": 0, "target": target, "trainer": {"threads": target}}
        config["algorithm"] = {"name": "bapo", "bounds": {"target": target}}
        folders.append(constant_run("bapo", name=str(target), config=config))
    assert compare(collect(folders)).settings == ["bapo target=4", "bapo target=16"]


def test_conditions_whose_runs_are_not_alike_are_noted(make_run, constant_run):
    first, other = constant_run("bapo"), constant_run("grpo", 1)
    assert compare(collect([first, other])).warnings == []
    longer = make_run("longer", num_updates=3, seed=1, algorithm="grpo")
    (longer / "config.yaml").write_text("{algorithm: {name: grpo}, optimizer: {lr: 0.1}, seed: 1}")
    assert compare(collect([first, longer])).warnings == [
        "staleness 8: the runs differ in more than the algorithm: optimizer",
        "staleness 8: the runs have different numbers of updates: 2 to 3",
    ]


@pytest.mark.parametrize(("regime", "condition"), [
    ({}, "4"),
    ({"partial_tokens": 8}, "4, 8 tokens a pass"),
    ({"async_generation": True, "max_age": 2}, "4, async, age at most 2"),
    ({"reuse_share": 0.25}, "4, reuse 0.25"),
])  # fmt: skip
def test_a_condition_says_what_the_age_depends_on(regime, condition):
    assert condition_of(4, {"regime": regime}) == condition


def test_the_numbers_are_written_as_csv_and_json(make_run, constant_run, tmp_path):
    folders = []
    for name, age, seed in product(("grpo", "bapo"), (1, 8), (0, 1)):
        own = {"algorithm": name, "seed": seed, "staleness": age}
        folders.append(make_run(f"{name}-{age}-{seed}", num_updates=12, **own))
    comparison = compare(collect([*folders, constant_run("dapo", status="interrupted")]))
    table = list(csv.DictReader(write_table(comparison, tmp_path / "compare.csv").open()))
    wanted = {"metric": "train/reward", "statistic": "final"}.items()
    lines = [line for line in table if wanted <= line.items()]
    assert [(line["algorithm"], line["staleness"], line["num_seeds"]) for line in lines] == [
        ("grpo", "1", "2"), ("bapo", "1", "2"), ("grpo", "8", "2"), ("bapo", "8", "2"),
    ]  # fmt: skip
    assert lines[0]["difference"] == "" and float(lines[1]["difference"]) > 0
    written = json.loads(write_numbers(comparison, tmp_path / "compare.json").read_text())
    assert written["reference"] == "grpo" and "interrupted" in written["notes"][0]
    assert len(written["runs"]) == 9
    bapo = next(run for run in written["runs"] if (run["algorithm"], run["seed"]) == ("bapo", 1))
    assert (bapo["setting"], bapo["staleness"], bapo["updates"]) == ("bapo", 1, 12)
    final = comparison.results["bapo", "1", "train/reward", "final"]
    assert bapo["values"]["train/reward final"] == final.by_seed[1]
    curve = next(entry for entry in written["curves"] if entry["metric"] == "train/reward")
    assert curve["updates"] == list(range(12)) and len(curve["mean"]) == len(curve["upper"]) == 12


def test_a_metric_without_a_row_is_compared_under_its_name(make_run):
    rows = [{"step": step, "train/reward": 0.5, "my/own": float(step)} for step in range(4)]
    comparison = compare(collect([make_run("run", rows=rows), make_run("other", rows=rows[:1], seed=1)]))
    assert comparison.metrics[-1].title == "my/own" and comparison.metrics[:-1] == EXPECTED
    assert comparison.results["bapo", "8", "my/own", "final"].by_seed == {0: 3.0, 1: 0.0}


def test_a_list_that_is_alike_everywhere_does_not_differ(constant_run):
    def differing(*last_betas):
        configs = {
            name: {"algorithm": {"name": name}, "optimizer": {"betas": [0.9, last]}}
            for name, last in zip(("grpo", "bapo"), last_betas, strict=True)
        }
        folders = [constant_run(name, name=f"{name} {last_betas}", config=configs[name]) for name in configs]
        return compare(collect(folders)).differing

    names = {"algorithm.name": {"grpo": "grpo", "bapo": "bapo"}}
    betas = {"optimizer.betas": {"grpo": "[0.9, 0.999]", "bapo": "[0.9, 0.995]"}}
    assert differing(0.999, 0.999) == names and differing(0.999, 0.995) == names | betas
