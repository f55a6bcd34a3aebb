"""Settings and conditions of runs, the short table over them, and that no run disappears without a word."""

import csv
import json

import pytest

from bapo_lightning.errors import DataError
from bapo_lightning.report.comparison.files import write_numbers, write_table
from bapo_lightning.report.comparison.runs import COLUMNS, condition_of
from bapo_lightning.report.comparison.settings import collect
from bapo_lightning.report.comparison.table import compare
from bapo_lightning.report.metrics import EXPECTED


def result(comparison, setting, key):
    """What the short table shows of a setting at staleness 8."""
    (column,) = (column for column in COLUMNS if column.key == key)
    return comparison.result((setting, "8"), column)


def constant_run(make_run, algorithm, seed, reward, name="", **manifest):
    rows = [
        {"step": step, "train/reward": value, "train/grad_norm": 1.0 + step}
        for step, value in enumerate((0.5, reward))
    ]
    return make_run(name or f"{algorithm}-{seed}", rows=rows, algorithm=algorithm, seed=seed, **manifest)


def test_the_table_has_means_and_differences_paired_by_seed(make_run):
    rewards = {"grpo": (0.60, 0.70, 0.80), "bapo": (0.70, 0.82, 0.88)}
    folders = [
        constant_run(make_run, name, seed, value)
        for name, values in rewards.items()
        for seed, value in enumerate(values)
    ]
    comparison = compare(collect(folders))
    assert [(cell, [run.seed for run in runs]) for cell, runs in comparison.cells.items()] == [
        (("grpo", "8"), [0, 1, 2]),
        (("bapo", "8"), [0, 1, 2]),
    ]
    assert [comparison.is_compared(cell) for cell in comparison.cells] == [False, True]
    assert all(result(comparison, "grpo", column.key).difference is None for column in COLUMNS)
    reward = result(comparison, "bapo", "reward_last")
    final, gain, difference = reward.value, result(comparison, "bapo", "reward_gain").value, reward.difference
    assert final is not None and gain is not None and difference is not None
    assert (final.mean, gain.mean, difference.mean) == pytest.approx((0.8, 0.3, 0.1))
    # deviations: values 0.0916515, differences 0.02; t(2) / sqrt(3) = 2.484165
    assert (final.half_width, difference.half_width) == pytest.approx((0.227677, 0.0496833), abs=1e-5)
    assert difference.excludes_zero
    assert result(comparison, "bapo", "entropy_last").value is None
    norm = result(comparison, "bapo", "grad_norm_max").value
    assert norm is not None and norm.mean == 2.0


def test_staleness_separates_rows_and_references(make_run):
    folders = [
        constant_run(make_run, "bapo", 0, 0.9, "a", staleness=1),
        constant_run(make_run, "grpo", 0, 0.6, "b", staleness=8),
    ]
    comparison = compare(collect(folders))
    assert [(cell, comparison.is_compared(cell)) for cell in comparison.cells] == [
        (("bapo", "1"), False),
        (("grpo", "8"), False),
    ]


def test_unusable_runs_are_listed_with_their_reason(make_run, tmp_path):
    good = constant_run(make_run, "bapo", 0, 0.9)
    failed = constant_run(make_run, "bapo", 1, 0.1, status="failed")
    nameless = constant_run(make_run, "bapo", 2, 0.9, staleness=None)
    mute = make_run("mute", rows=[{"step": 0}], seed=3)
    runs = collect([good, failed, nameless, mute, tmp_path / "nowhere"])
    comparison = compare(runs)
    assert comparison.cells == {("bapo", "8"): [runs[0]]}
    assert [run.problem for run in runs[:4]] == [
        None, "its status is 'failed' after 2 updates, not 'finished'",
        "its manifest does not say its staleness", "it recorded no reward",
    ]  # fmt: skip
    assert "does not exist" in str(runs[4].problem)
    assert comparison.left_out == runs[1:] and len(comparison.warnings) == 4


def test_of_two_runs_of_one_seed_the_later_counts(make_run):
    early = constant_run(make_run, "bapo", 0, 0.1, "early", started_at="2026-01-01T00:00:00")
    late = constant_run(make_run, "bapo", 0, 0.9, "late", started_at="2026-01-02T00:00:00")
    runs = collect([late, early])
    assert [run.problem for run in runs] == [None, "replaced by the later run late"]
    assert result(compare(runs), "bapo", "reward_last").by_seed == {0: 0.9}


def configure(folder, text):
    (folder / "config.yaml").write_text(text)
    return folder


def test_runs_of_one_algorithm_with_different_values_are_settings_of_their_own(make_run):
    folders = [
        configure(
            constant_run(make_run, "grpo", seed, reward, f"{low}-{high}-{seed}"),
            f"{{seed: {seed}, data: {{shuffle: {seed}}}, "
            f"algorithm: {{name: grpo, bounds: {{low: {low}, high: {high}}}}}}}",
        )
        for (low, high), reward in {(0.8, 1.2): 0.5, (0.8, 1.5): 0.7, (0.5, 1.2): 0.4}.items()
        for seed in (0, 1)
    ]
    runs = collect(folders)
    comparison = compare(runs, "grpo low=0.8 high=1.2")
    assert [(cell[0], [run.seed for run in members]) for cell, members in comparison.cells.items()] == [
        ("grpo low=0.5 high=1.2", [0, 1]),
        ("grpo low=0.8 high=1.2", [0, 1]),
        ("grpo low=0.8 high=1.5", [0, 1]),
    ]
    assert [comparison.is_compared(cell) for cell in comparison.cells] == [True, False, True]
    wider = result(comparison, "grpo low=0.8 high=1.5", "reward_last").difference
    assert wider is not None and wider.mean == pytest.approx(0.2)
    assert comparison.warnings == []
    with pytest.raises(
        DataError, match=r"--reference dapo: nothing finished has this name; it takes grpo low=0.5 high=1.2, "
    ):
        compare(runs, "dapo")


def test_of_keys_that_differ_together_the_setting_names_the_one_nearest_to_the_root(
    make_run,
):
    folders = [
        configure(
            constant_run(make_run, "bapo", 0, 0.5, f"{target}"),
            f"{{seed: 0, target: {target}, algorithm: {{name: bapo, bounds: {{target: {target}}}}}, "
            f"trainer: {{threads: {target}}}}}",
        )
        for target in (16, 4)
    ]
    assert compare(collect(folders)).settings == ["bapo target=4", "bapo target=16"]


def test_conditions_whose_runs_are_not_alike_are_noted(make_run):
    first, second = (
        constant_run(make_run, "bapo", 0, 0.9),
        make_run("longer", num_updates=3, seed=1, algorithm="grpo"),
    )
    configure(second, "{algorithm: {name: grpo}, optimizer: {lr: 0.1}, seed: 1}")
    assert compare(collect([first, second])).warnings == [
        "staleness 8: the runs differ in more than the algorithm: optimizer",
        "staleness 8: the runs have different numbers of updates: 2 to 3",
    ]


@pytest.mark.parametrize(
    ("regime", "condition"),
    [
        ({}, "4"),
        ({"partial_tokens": 8}, "4, 8 tokens a pass"),
        ({"async_generation": True, "max_age": 2}, "4, async, age at most 2"),
        ({"reuse_share": 0.25}, "4, reuse 0.25"),
    ],
)
def test_a_condition_says_what_the_age_depends_on(regime, condition):
    assert condition_of(4, {"regime": regime}) == condition


def test_runs_that_differ_only_in_algorithm_seed_and_folder_need_no_note(make_run):
    folders = [constant_run(make_run, "bapo", 0, 0.9), constant_run(make_run, "grpo", 1, 0.9)]
    assert compare(collect(folders)).warnings == []


def test_the_numbers_are_written_as_csv_and_json(make_run, tmp_path):
    cells = [(name, staleness, seed) for name in ("grpo", "bapo") for staleness in (1, 8) for seed in (0, 1)]
    folders = [
        make_run(f"{name}-{age}-{seed}", algorithm=name, seed=seed, staleness=age, num_updates=12)
        for name, age, seed in cells
    ]
    folders.append(constant_run(make_run, "dapo", 0, 0.5, status="interrupted"))
    comparison = compare(collect(folders))
    lines = [
        line
        for line in csv.DictReader(write_table(comparison, tmp_path / "compare.csv").open())
        if (line["metric"], line["statistic"]) == ("train/reward", "final")
    ]
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


def test_a_study_without_a_usable_run_says_why(tmp_path):
    with pytest.raises(DataError, match=r"no finished run to compare:\n  .*nowhere.*does not exist"):
        compare(collect([tmp_path / "nowhere"]))


def test_a_list_that_is_alike_everywhere_does_not_differ(make_run):
    betas = "optimizer: {betas: [0.9, 0.999]}"
    folders = [
        configure(make_run(name, algorithm=name, num_updates=2), f"{{algorithm: {{name: {name}}}, {betas}}}")
        for name in ("grpo", "bapo")
    ]
    assert compare(collect(folders)).differing == {"algorithm.name": {"grpo": "grpo", "bapo": "bapo"}}
    configure(folders[1], f"{{algorithm: {{name: bapo}}, {betas.replace('9]', '5]')}}}")
    assert compare(collect(folders)).differing["optimizer.betas"] == {
        "grpo": "[0.9, 0.999]",
        "bapo": "[0.9, 0.995]",
    }
