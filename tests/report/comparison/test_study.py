"""Aggregation over seeds, paired differences, and that no run disappears without a word."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
from tests.report.synthetic_runs import RunMaker

from bapo_lightning.errors import DataError
from bapo_lightning.report.comparison.study import (
    collect,
    condition_of,
    study_notes,
    study_table,
    write_study,
)


def constant_run(
    make_run: RunMaker, algorithm: str, seed: int, reward: float, name: str = "", **manifest: object
) -> Path:
    rows = [
        {"step": step, "train/reward": value, "train/grad_norm": 1.0 + step}
        for step, value in enumerate((0.5, reward))
    ]
    return make_run(name or f"{algorithm}-{seed}", rows=rows, algorithm=algorithm, seed=seed, **manifest)


def test_the_table_has_means_and_differences_paired_by_seed(make_run: RunMaker) -> None:
    rewards = {"grpo": (0.60, 0.70, 0.80), "bapo": (0.70, 0.82, 0.88)}
    folders = [
        constant_run(make_run, name, seed, value)
        for name, values in rewards.items()
        for seed, value in enumerate(values)
    ]
    grpo, bapo = study_table(collect(folders))
    assert (grpo.algorithm, grpo.staleness, grpo.seeds, grpo.differences) == ("grpo", 8, (0, 1, 2), {})
    final, gain, difference = (
        bapo.values["reward_last"],
        bapo.values["reward_gain"],
        bapo.differences["reward_last"],
    )
    assert final is not None and gain is not None and difference is not None
    assert (final.mean, gain.mean, difference.mean) == pytest.approx((0.8, 0.3, 0.1))
    # deviations: values 0.0916515, differences 0.02; t(2) / sqrt(3) = 2.484165
    assert (final.half_width, difference.half_width) == pytest.approx((0.227677, 0.0496833), abs=1e-5)
    assert difference.excludes_zero
    assert bapo.values["entropy_last"] is None
    assert bapo.values["grad_norm_max"] is not None and bapo.values["grad_norm_max"].mean == 2.0


def test_staleness_separates_rows_and_references(make_run: RunMaker) -> None:
    folders = [
        constant_run(make_run, "bapo", 0, 0.9, "a", staleness=1),
        constant_run(make_run, "grpo", 0, 0.6, "b", staleness=8),
    ]
    rows = study_table(collect(folders))
    assert [(row.algorithm, row.staleness, row.differences) for row in rows] == [
        ("bapo", 1, {}),
        ("grpo", 8, {}),
    ]


def test_unusable_runs_are_listed_with_their_reason(make_run: RunMaker, tmp_path: Path) -> None:
    good = constant_run(make_run, "bapo", 0, 0.9)
    failed = constant_run(make_run, "bapo", 1, 0.1, status="failed")
    nameless = constant_run(make_run, "bapo", 2, 0.9, staleness=None)
    mute = make_run("mute", rows=[{"step": 0}], seed=3)
    runs = collect([good, failed, nameless, mute, tmp_path / "nowhere"])
    (row,) = study_table(runs)
    assert row.seeds == (0,)
    assert [run["problem"] for run in runs[:4]] == [
        None,
        "its status is 'failed' after 2 updates, not 'finished'",
        "its manifest does not say its staleness",
        "it recorded no reward",
    ]
    assert "does not exist" in runs[4]["problem"]
    assert len(study_notes(runs)) == 4


def test_of_two_runs_of_one_seed_the_later_counts(make_run: RunMaker) -> None:
    early = constant_run(make_run, "bapo", 0, 0.1, "early", started_at="2026-01-01T00:00:00")
    late = constant_run(make_run, "bapo", 0, 0.9, "late", started_at="2026-01-02T00:00:00")
    runs = collect([late, early])
    assert [run["problem"] for run in runs] == [None, "replaced by the later run late"]
    (row,) = study_table(runs)
    assert row.values["reward_last"] is not None and row.values["reward_last"].mean == 0.9


def configure(folder: Path, text: str) -> Path:
    (folder / "config.yaml").write_text(text)
    return folder


def test_runs_of_one_algorithm_with_different_values_are_settings_of_their_own(make_run: RunMaker) -> None:
    folders = [
        configure(
            constant_run(make_run, "grpo", seed, reward, f"{low}-{high}-{seed}"),
            f"{{seed: {seed}, data: {{shuffle: {seed}}}, algorithm: {{name: grpo, bounds: {{low: {low}, high: {high}}}}}}}",
        )
        for (low, high), reward in {(0.8, 1.2): 0.5, (0.8, 1.5): 0.7, (0.5, 1.2): 0.4}.items()
        for seed in (0, 1)
    ]
    runs = collect(folders)
    rows = study_table(runs, "grpo low=0.8 high=1.2")
    assert [(row.setting, row.seeds) for row in rows] == [
        ("grpo low=0.5 high=1.2", (0, 1)),
        ("grpo low=0.8 high=1.2", (0, 1)),
        ("grpo low=0.8 high=1.5", (0, 1)),
    ]
    assert rows[1].differences == {}
    wider = rows[2].differences["reward_last"]
    assert wider is not None and wider.mean == pytest.approx(0.2)
    assert study_notes(runs) == []
    with pytest.raises(
        DataError, match=r"no finished run has the setting 'dapo' .* there are: grpo low=0.5 high=1.2, "
    ):
        study_table(runs, "dapo")


def test_of_keys_that_differ_together_the_setting_names_the_one_nearest_to_the_root(
    make_run: RunMaker,
) -> None:
    folders = [
        configure(
            constant_run(make_run, "bapo", 0, 0.5, f"{target}"),
            f"{{seed: 0, target: {target}, algorithm: {{name: bapo, bounds: {{target: {target}}}}}, trainer: {{threads: {target}}}}}",
        )
        for target in (16, 4)
    ]
    assert [row.setting for row in study_table(collect(folders))] == ["bapo target=4", "bapo target=16"]


def test_conditions_whose_runs_are_not_alike_are_noted(make_run: RunMaker) -> None:
    first, second = (
        constant_run(make_run, "bapo", 0, 0.9),
        make_run("longer", num_updates=3, seed=1, algorithm="grpo"),
    )
    configure(second, "{algorithm: {name: grpo}, optimizer: {lr: 0.1}, seed: 1}")
    assert study_notes(collect([first, second])) == [
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
def test_a_condition_says_what_the_age_depends_on(regime: dict[str, object], condition: str) -> None:
    assert condition_of(4, {"regime": regime}) == condition


def test_runs_that_differ_only_in_algorithm_seed_and_folder_need_no_note(make_run: RunMaker) -> None:
    assert (
        study_notes(collect([constant_run(make_run, "bapo", 0, 0.9), constant_run(make_run, "grpo", 1, 0.9)]))
        == []
    )


def test_a_study_is_written_as_csv_json_and_png(make_run: RunMaker, tmp_path: Path) -> None:
    cells = [(name, staleness, seed) for name in ("grpo", "bapo") for staleness in (1, 8) for seed in (0, 1)]
    folders = [
        make_run(f"{name}-{age}-{seed}", algorithm=name, seed=seed, staleness=age, num_updates=12)
        for name, age, seed in cells
    ]
    folders.append(constant_run(make_run, "dapo", 0, 0.5, status="interrupted"))
    paths = write_study(collect(folders), tmp_path / "study")
    assert [path.name for path in paths] == ["study.csv", "study.json", "study.png"]
    assert paths[2].stat().st_size > 30_000
    lines = list(csv.DictReader(paths[0].open()))
    assert [(line["algorithm"], line["staleness"], line["num_seeds"]) for line in lines] == [
        ("grpo", "1", "2"),
        ("bapo", "1", "2"),
        ("grpo", "8", "2"),
        ("bapo", "8", "2"),
    ]
    assert lines[0]["reward_last_difference"] == ""
    assert float(lines[1]["reward_last_difference"]) > 0
    written = json.loads(paths[1].read_text())
    assert written["reference"] == "grpo"
    assert len(written["runs"]) == 9
    assert "interrupted" in written["notes"][0]


def test_a_study_without_a_usable_run_says_why(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no finished run to compare:\n  left out: .*nowhere"):
        write_study(collect([tmp_path / "nowhere"]), tmp_path)
