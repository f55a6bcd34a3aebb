"""The numbers of a comparison: statistics, paired tests, curves that are aligned honestly, and notes on what
limits it.
"""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from tests.report.synthetic_runs import RunMaker

from bapo_lightning.errors import DataError
from bapo_lightning.report.comparison.mean_curve import mean_curve
from bapo_lightning.report.comparison.study import collect
from bapo_lightning.report.comparison.table import METRIC_NAMES, QUANTITIES, compare, damage, statistic_of
from bapo_lightning.report.intervals import holm, paired_difference, paired_p_value, t_probability, t_quantile


@pytest.mark.parametrize(
    ("t", "degrees", "probability"),
    [
        (1.0, 1, 0.5),
        (2.0, 2, 0.183503),
        (2.0, 3, 0.139326),
        (2.5, 4, 0.066767),
        (3.0, 9, 0.014956),
        (2.0, 30, 0.054625),
        (0.0, 5, 1.0),
    ],
)
def test_probabilities_of_t_are_those_of_the_tables(t: float, degrees: int, probability: float) -> None:
    assert t_probability(t, degrees) == t_probability(-t, degrees) == pytest.approx(probability, abs=1e-6)


@pytest.mark.parametrize("degrees", [1, 2, 3, 4, 7, 12, 30])
def test_the_quantile_of_the_interval_is_the_5_percent_point_of_the_test(degrees: int) -> None:
    assert t_probability(t_quantile(degrees), degrees) == pytest.approx(0.05, abs=1e-5)


def test_no_degree_of_freedom_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 1 degree of freedom"):
        t_probability(1.0, 0)


def test_the_paired_test_uses_common_seeds_only() -> None:
    # differences 1, 2, 3: t = 2 sqrt(3), 2 degrees: p = 1 - t / sqrt(t^2 + 2) = 1 - sqrt(12 / 14)
    assert paired_p_value({0: 11.0, 1: 22.0, 2: 33.0, 7: 9.0}, {0: 10.0, 1: 20.0, 2: 30.0}) == pytest.approx(
        1 - math.sqrt(12 / 14)
    )
    assert paired_p_value({0: 1.0}, {0: 0.0}) is None
    assert paired_p_value({0: 1.0, 1: 2.0}, {0: 1.0, 1: 2.0}) == 1.0


def test_p_is_below_5_percent_exactly_where_the_interval_excludes_zero() -> None:
    for shift in (0.1, 0.5, 0.9, 1.1, 1.2, 1.3, 2.0):
        values, reference = {0: shift, 1: shift + 0.5, 2: shift - 0.5}, dict.fromkeys(range(3), 0.0)
        difference, p_value = paired_difference(values, reference), paired_p_value(values, reference)
        assert difference is not None and p_value is not None and (p_value < 0.05) == difference.excludes_zero


def test_holm_multiplies_the_least_p_by_their_number_and_keeps_the_order() -> None:
    assert holm([0.04, None, 0.01, 0.03]) == [
        pytest.approx(0.06),
        None,
        pytest.approx(0.03),
        pytest.approx(0.06),
    ]
    assert holm([0.9, 0.8]) == [1.0, 1.0]


def test_curves_are_averaged_where_all_runs_have_values() -> None:
    curve = mean_curve([([0, 1, 2], [1.0, 2.0, 3.0]), ([0, 2, 4], [3.0, 5.0, 7.0]), ([], [])], 1)
    assert (curve.steps, curve.means, curve.num_runs, curve.last_recorded) == ([0, 2], [2.0, 4.0], 2, (2, 4))
    assert curve.half_widths[0] == pytest.approx(12.7062)  # deviation sqrt(2), two runs
    assert (curve.lower[0], curve.upper[0]) == (pytest.approx(2 - 12.7062), pytest.approx(2 + 12.7062))


def test_a_thinned_curve_keeps_its_last_point() -> None:
    steps = list(range(10))
    thin = mean_curve([(steps, [float(step) for step in steps])], 1).thinned(4)
    assert thin.steps == [0, 3, 6, 9] and thin.means == [0.0, 3.0, 6.0, 9.0]
    assert mean_curve([], 1).thinned(4).steps == []


def test_the_statistics_of_a_run() -> None:
    run = {
        "curves": {name: ([0, 1, 2], [1.0, 5.0, 3.0]) for name in METRIC_NAMES}
        | {"policy/approx_kl": ([], [])}
    }
    by_name = {quantity.metric: quantity for quantity in QUANTITIES}
    reward, entropy, divergence = (
        by_name[name] for name in ("train/reward", "policy/entropy", "policy/approx_kl")
    )
    assert [statistic_of(run, reward, name) for name in ("final", "extreme", "mean")] == [3.0, 5.0, 3.0]
    assert statistic_of(run, entropy, "extreme") == 1.0
    assert statistic_of(run, divergence, "final") is None


def test_differences_are_paired_by_seed_and_tested(make_run: RunMaker) -> None:
    rewards = {"grpo": (0.60, 0.70, 0.80), "bapo": (0.70, 0.82, 0.88)}
    folders = [
        make_run(f"{name}-{seed}", rows=[{"step": 0, "train/reward": value}], algorithm=name, seed=seed)
        for name, values in rewards.items()
        for seed, value in enumerate(values)
    ]
    comparison = compare(collect(folders, METRIC_NAMES))
    assert (comparison.reference, comparison.settings, comparison.conditions) == (
        "grpo",
        ["grpo", "bapo"],
        ["8"],
    )
    result = comparison.results["bapo", "8", "train/reward", "final"]
    assert result.difference is not None and result.difference.mean == pytest.approx(0.1)
    # differences 0.10, 0.12, 0.08: deviation 0.02, t = 0.1 / (0.02 / sqrt(3)) = 8.660
    assert result.p_value == result.p_adjusted == pytest.approx(1 - math.sqrt(75 / 77))
    assert result.is_significant
    assert comparison.results["grpo", "8", "train/reward", "final"].difference is None
    assert comparison.results["bapo", "8", "policy/entropy", "final"].value is None


def test_what_limits_a_comparison_is_noted(make_run: RunMaker) -> None:
    rows = [{"step": step, "train/reward": 0.5} for step in range(6)]
    folders = [
        make_run("short", rows=rows[:4], algorithm="grpo", seed=0),
        make_run("long", rows=[{**row, "policy/entropy": 0.1} for row in rows], algorithm="grpo", seed=1),
        make_run("alone", rows=rows, algorithm="bapo", seed=0),
    ]
    notes = compare(collect(folders, METRIC_NAMES)).notes
    assert "bapo at staleness 8: one seed only, so there is neither an interval nor a test" in notes
    assert (
        "grpo at staleness 8: curves end at update 3, with the shortest of its runs; the longest goes on to 5"
        in notes
    )
    assert "grpo at staleness 8: Policy entropy was not recorded by seeds [0]" in notes
    assert "bapo at staleness 8: Policy entropy was not recorded by any run" in notes


def test_nothing_to_compare_is_an_error_that_names_every_reason(make_run: RunMaker, tmp_path: Path) -> None:
    failed = make_run("failed", num_updates=2, status="failed")
    with pytest.raises(
        DataError,
        match=r"no finished run to compare:\n  .*failed: its status is 'failed'.*\n  .*nowhere.*does not "
        r"exist",
    ):
        compare(collect([failed, tmp_path / "nowhere"], METRIC_NAMES))


def test_damage_lists_what_was_dropped_or_went_wrong(make_run: RunMaker) -> None:
    folder = make_run(
        "run",
        rows=[{"step": 0, "train/reward": 0.5, "rollout/dropped": 3, "rollout/cut": 0}],
        resumes=[{}, {}],
    )
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"step": 1, "train/rew')
    (run,) = collect([folder], METRIC_NAMES)
    assert damage(run) == {"dropped": 3, "unreadable lines": 1, "resumes": 2}
