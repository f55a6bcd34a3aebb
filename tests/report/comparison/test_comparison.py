"""The numbers of a comparison: statistics, paired tests, curves that are aligned honestly, and notes on what
limits it.
"""

import math

import pytest

from bapo_lightning.errors import DataError
from bapo_lightning.report.comparison.mean_curve import mean_curve
from bapo_lightning.report.comparison.runs import Run, damage, statistic_of
from bapo_lightning.report.comparison.settings import collect
from bapo_lightning.report.comparison.table import compare
from bapo_lightning.report.intervals import holm, mean_interval, paired_difference, paired_p_value
from bapo_lightning.report.metrics import EXPECTED

NAMES = [metric.name for metric in EXPECTED]


# Student's t of n values 0 +- 1 shifted to a mean whose t is given: tabled two-sided probabilities.
@pytest.mark.parametrize(
    ("t", "degrees", "probability"),
    [
        (1.0, 1, 0.5), (2.0, 2, 0.183503), (2.0, 3, 0.139326), (2.5, 4, 0.066767), (3.0, 9, 0.014956),
        (2.0, 30, 0.054625), (0.0, 5, 1.0),
    ],
)  # fmt: skip
def test_p_values_are_those_of_the_tables(t, degrees, probability):
    count = degrees + 1
    spread = [seed - degrees / 2 for seed in range(count)]  # of mean 0
    error = math.sqrt(math.fsum(value**2 for value in spread) / degrees / count)
    zeros = dict.fromkeys(range(count), 0.0)
    for sign in (1, -1):
        values = {seed: value + sign * t * error for seed, value in enumerate(spread)}
        assert paired_p_value(values, zeros) == pytest.approx(probability, abs=1e-6)


def test_the_paired_test_uses_common_seeds_only():
    # differences 1, 2, 3: t = 2 sqrt(3), 2 degrees: p = 1 - t / sqrt(t^2 + 2) = 1 - sqrt(12 / 14)
    assert paired_p_value({0: 11.0, 1: 22.0, 2: 33.0, 7: 9.0}, {0: 10.0, 1: 20.0, 2: 30.0}) == pytest.approx(
        1 - math.sqrt(12 / 14)
    )
    assert paired_p_value({0: 1.0}, {0: 0.0}) is None
    assert paired_p_value({0: 1.0, 1: 2.0}, {0: 1.0, 1: 2.0}) == 1.0


def test_p_is_below_5_percent_exactly_where_the_interval_excludes_zero():
    for shift in (0.1, 0.5, 0.9, 1.1, 1.2, 1.3, 2.0):
        values, reference = {0: shift, 1: shift + 0.5, 2: shift - 0.5}, dict.fromkeys(range(3), 0.0)
        difference, p_value = paired_difference(values, reference), paired_p_value(values, reference)
        assert difference is not None and p_value is not None and (p_value < 0.05) == difference.excludes_zero


def test_holm_multiplies_the_least_p_by_their_number_and_keeps_the_order():
    assert holm([0.04, None, 0.01, 0.03]) == [
        pytest.approx(0.06), None, pytest.approx(0.03), pytest.approx(0.06),
    ]  # fmt: skip
    assert holm([0.9, 0.8]) == [1.0, 1.0]


def test_curves_are_averaged_where_all_runs_have_values():
    curve = mean_curve([([0, 1, 2], [1.0, 2.0, 3.0]), ([0, 2, 4], [3.0, 5.0, 7.0]), ([], [])], 1)
    assert (curve.steps, curve.means, curve.num_runs, curve.last_recorded) == ([0, 2], [2.0, 4.0], 2, (2, 4))
    assert curve.runs == [[1.0, 3.0], [3.0, 5.0]]


def test_a_band_has_the_scale_of_its_axis_and_ends_with_the_values():
    values = [2.0, 2.1, 2.2, 2.4, 3.0]
    runs = [([0, 1], [value, 0.1 if value == 2.0 else 9.0]) for value in values]
    plain = mean_curve(runs, 1)
    interval = mean_interval(values)
    assert interval and interval.half_width == pytest.approx(plain.upper[0] - interval.mean)
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
    runs = [([0], [value]) for value in (0.0, 0.5, 1.0)]
    assert mean_curve(runs, 1, limits=(0.0, math.inf)).lower == [0.0]
    assert mean_curve(runs, 1, limits=(0.0, math.inf)).upper[0] > 1.7


def test_a_thinned_curve_keeps_its_last_point():
    steps = list(range(10))
    thin = mean_curve([(steps, [float(step) for step in steps])], 1).thinned(4)
    assert thin.steps == [0, 3, 6, 9] and thin.means == [0.0, 3.0, 6.0, 9.0]
    assert mean_curve([], 1).thinned(4).steps == []


def test_the_statistics_of_a_run():
    curves = {name: ([0, 1, 2], [1.0, 5.0, 3.0]) for name in NAMES} | {"policy/approx_kl": ([], [])}
    run = Run("run", None, curves=curves)
    names = ("final", "extreme", "mean", "gain", "last")
    assert [statistic_of(run, "train/reward", name) for name in names] == [3.0, 5.0, 3.0, 2.0, 3.0]
    assert statistic_of(run, "policy/entropy", "extreme") == 1.0
    assert statistic_of(run, "policy/approx_kl", "final") is None


def test_the_extreme_of_a_spiky_metric_is_one_value_and_of_others_a_moving_average():
    values = [1.0] * 19 + [21.0]  # windows of two
    run = Run("run", None, curves={name: (list(range(20)), values) for name in NAMES})
    assert statistic_of(run, "train/grad_norm", "extreme") == 21.0
    assert statistic_of(run, "train/reward", "extreme") == 11.0
    assert statistic_of(run, "train/reward", "final") == 11.0
    assert statistic_of(run, "val/avg@k", "last") == 21.0


def test_differences_are_paired_by_seed_and_tested(make_run):
    rewards = {"grpo": (0.60, 0.70, 0.80), "bapo": (0.70, 0.82, 0.88)}
    folders = [
        make_run(f"{name}-{seed}", rows=[{"step": 0, "train/reward": value}], algorithm=name, seed=seed)
        for name, values in rewards.items()
        for seed, value in enumerate(values)
    ]
    comparison = compare(collect(folders))
    assert (comparison.reference, comparison.settings, comparison.conditions) == (
        "grpo",
        ["grpo", "bapo"],
        ["8"],
    )
    result = comparison.results["bapo", "8", "train/reward", "final"]
    assert result.difference is not None and result.difference.mean == pytest.approx(0.1)
    # differences 0.10, 0.12, 0.08: deviation 0.02, t = 0.1 / (0.02 / sqrt(3)) = 8.660
    assert result.p_value == result.p_adjusted == pytest.approx(1 - math.sqrt(75 / 77))
    assert result.verdict == "more"
    assert comparison.results["grpo", "8", "train/reward", "final"].difference is None
    assert comparison.results["bapo", "8", "policy/entropy", "final"].value is None


def test_what_limits_a_comparison_is_noted(make_run):
    rows = [{"step": step, "train/reward": 0.5} for step in range(6)]
    folders = [
        make_run("short", rows=rows[:4], algorithm="grpo", seed=0),
        make_run("long", rows=[{**row, "policy/entropy": 0.1} for row in rows], algorithm="grpo", seed=1),
        make_run("alone", rows=rows, algorithm="bapo", seed=0),
    ]
    notes = compare(collect(folders)).limits
    assert "bapo at staleness 8: one seed only, so there is neither an interval nor a test" in notes
    assert (
        "grpo at staleness 8: curves end at update 3, with the shortest of its runs; the longest goes on to 5"
        in notes
    )
    assert "grpo at staleness 8: Policy entropy was not recorded by seeds [0]" in notes
    assert "bapo at staleness 8: Policy entropy was not recorded by any run" in notes


def test_nothing_to_compare_is_an_error_that_names_every_reason(make_run, tmp_path):
    failed = make_run("failed", num_updates=2, status="failed")
    with pytest.raises(
        DataError,
        match=r"no finished run to compare:\n  .*failed: its status is 'failed'.*\n  .*nowhere.*does not "
        r"exist",
    ):
        compare(collect([failed, tmp_path / "nowhere"]))


def test_damage_lists_what_was_dropped_or_went_wrong(make_run):
    folder = make_run(
        "run",
        rows=[{"step": 0, "train/reward": 0.5, "rollout/dropped": 3, "rollout/cut": 0}],
        resumes=[{}, {}],
    )
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"step": 1, "train/rew')
    (run,) = collect([folder])
    assert damage(run) == {"dropped": 3, "unreadable lines": 1, "resumes": 2}
