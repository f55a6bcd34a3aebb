"""The numbers of a comparison: statistics, paired tests, mean curves, and notes on what limits it."""

import math

import pytest

from bapo_lightning.report.intervals import mean_interval, t_quantile
from bapo_lightning.report.metrics import EXPECTED, HELD_OUT
from bapo_lightning.system.errors import DataError
from bapo_lightning.tools.comparison.files import write_table
from bapo_lightning.tools.comparison.mean_curve import mean_curve
from bapo_lightning.tools.comparison.page import interval_text, render_page
from bapo_lightning.tools.comparison.runs import COLUMNS, damage
from bapo_lightning.tools.comparison.settings import collect
from bapo_lightning.tools.comparison.table import compare


def test_curves_are_averaged_where_all_runs_have_values():
    curve = mean_curve([([0, 1, 2], [1.0, 2.0, 3.0]), ([0, 2, 4], [3.0, 5.0, 7.0]), ([], [])], 1)
    assert (curve.steps, curve.means, curve.num_runs, curve.last_recorded) == ([0, 2], [2.0, 4.0], 2, (2, 4))
    assert curve.runs == [[1.0, 3.0], [3.0, 5.0]]


def test_a_band_has_the_scale_of_its_axis_and_ends_with_the_values():
    values = [2.0, 2.1, 2.2, 2.4, 3.0]
    runs = [([0, 1], [value, 0.1 if value == 2.0 else 9.0]) for value in values]
    plain, interval = mean_curve(runs, 1), mean_interval(values)
    assert interval.half_width == pytest.approx(plain.upper[0] - interval.mean)
    geometric = mean_curve(runs, 1, logarithmic=True)
    assert geometric.means[0] == pytest.approx(math.prod(values) ** 0.2)
    assert geometric.lower[0] * geometric.upper[0] == pytest.approx(geometric.means[0] ** 2)
    assert plain.upper[1] == geometric.upper[1] == 9.0  # 12.1 else: no update has a larger value
    assert min(plain.lower + geometric.lower) >= 0.1
    without_gradient = mean_curve([([0, 1], [0.0, 2.0]), ([0, 1], [4.0, 8.0])], 1, logarithmic=True)
    assert (without_gradient.steps, without_gradient.means) == ([1], [pytest.approx(4.0)])


def test_a_spike_is_averaged_over_updates_as_the_axis_shows_it():
    values = [1.0] * 30 + [1000.0] + [1.0] * 30  # windows of five
    curve = mean_curve([(list(range(61)), values)], 1, logarithmic=True)
    assert max(curve.means) == pytest.approx(1000**0.2) and curve.means == curve.runs[0]


def test_a_band_goes_as_far_as_its_quantity_can():
    curve = mean_curve([([0], [value]) for value in (0.0, 0.5, 1.0)], 1, limits=(0.0, math.inf))
    assert curve.lower == [0.0] and curve.upper[0] > 1.7


def test_a_thinned_curve_keeps_its_ends_and_its_extremes():
    values = [float(step % 10) for step in range(100)]
    values[37], values[61] = 50.0, -50.0
    thin = mean_curve([(list(range(100)), values)], 1, smooth=False).thinned(20)
    assert len(thin.steps) <= 20 and (thin.steps[0], thin.steps[-1]) == (0, 99)
    assert thin.means == thin.runs[0] == [values[step] for step in thin.steps] and {37, 61} <= {*thin.steps}
    assert mean_curve([], 1).thinned(4).steps == []


def test_differences_are_paired_by_seed_and_tested(make_run):
    folders = []
    for name, found in {"grpo": (0.60, 0.70, 0.80), "bapo": (0.70, 0.82, 0.88)}.items():
        for seed, reward in enumerate(found):
            rows = [{"step": n, "train/grad_norm": 1.0 + n, "train/reward": (0.5, reward)[n]} for n in (0, 1)]
            folders.append(make_run(f"{name}-{seed}", rows=rows, algorithm=name, seed=seed))
    comparison = compare(collect(folders))
    assert comparison.reference == "grpo"
    assert (comparison.settings, comparison.conditions) == (["grpo", "bapo"], ["8"])
    seeds = {cell: [run.seed for run in runs] for cell, runs in comparison.cells.items()}
    assert seeds == {("grpo", "8"): [0, 1, 2], ("bapo", "8"): [0, 1, 2]}
    assert [comparison.is_compared(cell) for cell in comparison.cells] == [False, True]
    assert all(comparison.result(("grpo", "8"), column).difference is None for column in COLUMNS)
    results = {column.key: comparison.result(("bapo", "8"), column) for column in COLUMNS}
    final, difference = results["reward_last"].value, results["reward_last"].difference
    gain = results["reward_gain"].value
    assert (final.mean, gain.mean, difference.mean) == pytest.approx((0.8, 0.3, 0.1))
    # deviations: values 0.0916515, differences 0.02; t(2) / sqrt(3) = 2.484165
    assert (final.half_width, difference.half_width) == pytest.approx((0.227677, 0.0496833), abs=1e-5)
    # t = 0.1 / (0.02 / sqrt(3)) = 8.660
    reward, norm = results["reward_last"], results["grad_norm_max"]
    assert reward.p_value == pytest.approx(1 - math.sqrt(75 / 77)) and difference.excludes_zero
    tested = [result for result in comparison.results.values() if result.p_value is not None]
    assert len(tested) == 4, "final, best, mean and gain of the reward; gradient norms do not differ at all"
    assert reward.p_adjusted == pytest.approx(4 * reward.p_value)
    assert (reward.verdict, norm.verdict) == ("unresolved", "untested")
    assert results["entropy_last"].value is None and results["grad_norm_max"].value.mean == 2.0


def test_ages_are_drawn_as_they_are(make_run):
    ages = [float(step % 8) for step in range(64)]
    rows = [{"step": step, "train/reward": 0.5, "staleness/age_mean": age} for step, age in enumerate(ages)]
    curves = compare(collect([make_run("run", rows=rows)])).curves
    assert [curve.means for (*_, metric), curve in curves.items() if metric.endswith("age_mean")] == [ages]


def test_two_seeds_that_differ_by_one_answer_have_no_verdict(make_run):
    problems = {"validation": {"sums": {"kept": 200}}}
    folders = []
    for name, values in {"grpo": [0.3, 0.35, 0.4], "bapo": [0.295, 0.345, 0.395]}.items():
        for seed, accuracy in enumerate(values):
            rows = [{"step": step, "train/reward": 0.5, "val/sums/avg@1": accuracy} for step in (0, 1)]
            own = {"algorithm": name, "seed": seed, "problems": problems}
            folders.append(make_run(f"{name}-{seed}", rows=rows, **own))
    (column,) = (column for column in COLUMNS if column.key == "accuracy_last")
    for chosen in (folders[:2] + folders[3:5], folders):
        result = compare(collect(chosen)).result(("bapo", "8"), column)
        seeds = len(chosen) // 2
        assert result.verdict == "untested" and result.difference.mean == pytest.approx(-1 / 200)
        error = 1 / 200 / math.sqrt(6 * seeds)
        assert result.difference.half_width == pytest.approx(t_quantile(seeds - 1) * error)


@pytest.mark.parametrize("seeds", [2, 3])
def test_equal_values_have_the_floor_of_their_step_or_no_interval(make_run, seeds):
    problems = {"validation": {"sums": {"kept": 16}}}
    rows = [{"step": step, "train/reward": 0.5, "val/sums/avg@1": 0.4375} for step in (0, 1)]
    folders = [make_run(f"{seed}", rows=rows, seed=seed, problems=problems) for seed in range(seeds)]
    comparison = compare(collect(folders))
    results = comparison.results
    reward, accuracy = (results["bapo", "8", name, "final"].value for name in ("train/reward", HELD_OUT))
    assert accuracy.half_width == pytest.approx(t_quantile(seeds - 1) / 16 / math.sqrt(12 * seeds))
    assert interval_text(reward) == "0.500" and interval_text(accuracy).startswith("0.438 ± 0.")


def test_what_limits_a_comparison_is_noted(make_run):
    rows = [{"step": step, "train/reward": 0.5} for step in range(6)]
    folders = [
        make_run("short", rows=rows[:4], algorithm="grpo", seed=0),
        make_run("long", rows=[{**row, "policy/entropy": 0.1} for row in rows], algorithm="grpo", seed=1),
        make_run("alone", rows=rows, algorithm="bapo", seed=0),
    ]
    assert {
        "bapo at staleness 8: one seed only, so there is neither an interval nor a test",
        "bapo at staleness 8: Policy entropy was not recorded by any run",
        "grpo at staleness 8: Policy entropy was not recorded by seeds [0]",
        "grpo at staleness 8: curves end at update 3, with the shortest of its runs; the longest continues "
        "to 5",
    } <= set(compare(collect(folders)).limits)


def test_nothing_to_compare_is_an_error_that_names_every_reason(make_run, tmp_path):
    failed = make_run("failed", num_updates=2, status="failed")
    reasons = r".*failed: its status is 'failed'.*\n  .*nowhere.*does not exist"
    with pytest.raises(DataError, match=rf"no finished run to compare:\n  {reasons}"):
        compare(collect([failed, tmp_path / "nowhere"]))


def test_damage_lists_what_was_dropped_or_went_wrong(make_run):
    row = {"step": 0, "train/reward": 0.5, "rollout/dropped": 3, "rollout/cut": 0}
    folder = make_run("run", rows=[row], resumes=[{}, {}])
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"step": 1, "train/rew')
    (run,) = collect([folder])
    assert damage(run) == {"dropped": 3, "unreadable lines": 1, "resumes": 2}


def with_turns(make_run, turns):
    """Compares two algorithms over two seeds; `turns` has the mean number of turns of the runs with any."""
    folders = []
    for algorithm in ("grpo", "bapo"):
        for seed in range(2):
            mean = turns.get((algorithm, seed))
            found = {} if mean is None else {"turns/mean": mean, "turns/positive_share_2": 0.5}
            rows = [{"step": step, "train/reward": 0.5, **found} for step in range(4)]
            folders.append(make_run(f"{algorithm}{seed}", rows=rows, algorithm=algorithm, seed=seed))
    return compare(collect(folders))


def test_runs_with_turns_are_compared_by_them(make_run, tmp_path):
    turns = {("grpo", 0): 1.0, ("grpo", 1): 2.0, ("bapo", 0): 2.0, ("bapo", 1): 4.0}
    comparison = with_turns(make_run, turns)
    added = [metric.title for metric in comparison.metrics[len(EXPECTED) :]]
    assert added == ["Turns of a conversation", "Positive share, turn 2"]
    result = comparison.results["bapo", "8", "turns/mean", "final"]
    assert (result.value.mean, result.difference.mean) == (3.0, 1.5)
    page = render_page(comparison, "title", "make compare", "today")
    assert all(title in page for title in added)
    assert "turns/mean,final" in write_table(comparison, tmp_path / "compare.csv").read_text()


def test_a_setting_may_be_without_turns_but_not_one_of_its_runs(make_run):
    notes = with_turns(make_run, {("bapo", 0): 2.0}).limits
    assert "bapo at staleness 8: Turns of a conversation was not recorded by seeds [1]" in notes
    assert not any("grpo" in note and "Turns" in note for note in notes)
