"""What becomes of claims that were written down, and the largest rates of the law, on curves made by hand."""

from pathlib import Path

import numpy as np
import pytest

from bapo_lightning.system.errors import ConfigError
from studies.map.cells import FIRST_COMPARED, write_measured
from studies.map.hypotheses import draw, judge, means, pair_table, read_all, render
from studies.map.jobs import all_jobs
from studies.map.law import crossing, draw_law, exponents, largest_rates, rate_table, render_law
from studies.map.plan import MapConfig, read_map

SHIPPED = ["score_centering", "random_rewards", "reuse", "staleness_law"]
SEEDS = range(FIRST_COMPARED, FIRST_COMPARED + 6)


def written(name: str, folder: Path, reward, *options: str) -> MapConfig:
    """A map whose every job has left `reward(cell, method)` [4 measurements] for each of six seeds."""
    config = read_map([f"map={name}", "seeds=6", f"output={folder}", *options])
    for job in all_jobs(config, folder):
        noise = np.random.default_rng(len(job.method)).normal(0, 1e-3, (6, 1))  # seeds differ
        curve = reward(job.cell, job.method) + noise
        write_measured(job.path, SEEDS, {"reward": curve, "entropy": curve})
    return config


@pytest.mark.parametrize("name", SHIPPED)
def test_every_shipped_verdict_has_claims_about_its_map(name):
    config = read_map([f"map={name}"])
    asked = config.verdict
    assert (asked is not None and asked.hypotheses) or asked.law


def test_only_some_methods_leave_the_claims_about_them():
    config = read_map(["map=score_centering", "only=[one,one_exact,one_8,tis]"])
    pairs = [pair for claim in config.verdict.hypotheses for pair in claim.pairs]
    assert pairs == [("one_exact", "one"), ("one_exact", "one"), ("one_8", "one_exact")]
    config = read_map(["map=staleness_law", "only=[grpo]"])
    assert [law.method for law in config.verdict.law] == ["grpo"] and not config.verdict.constants
    with pytest.raises(ConfigError, match="only leaves none of the claims"):
        read_map(["map=score_centering", "only=[one,mis]"])


def test_a_claim_may_be_about_another_curve_and_about_equal_time(tmp_path):
    config = read_map(["map=late_sums", "seeds=6", f"output={tmp_path}"])
    assert {job.method for job in all_jobs(config, tmp_path)} == {"queue", "pace", "evict", "mask"}
    for job in all_jobs(config, tmp_path):
        noise = np.random.default_rng(ord(job.method[0])).normal(0, 1e-3, (6, 1))
        flat = np.array([1.0, 1.0, 1.0]) + noise
        reward, slow = np.array([0.0, 0.5, 1.0]) + noise, 1 + 2 * (job.method == "pace")
        age = flat - 0.5 * (job.method == "evict")
        curves = {"reward": reward, "time": slow * np.array([[0.0, 10.0, 20.0]] * 6), "age": age}
        others = dict.fromkeys(("length_ratio", "score_difference", *config.verdict.shown), flat)
        write_measured(job.path, SEEDS, {**curves, **others})
    measured = read_all(config, tmp_path)
    judged = judge(config, config.verdict, measured)
    found = {(item.hypothesis, item.comparison.method): item for item in judged}
    assert found["fresher", "evict"].verdict == "less" and found["cost", "evict"].verdict == "equal"
    assert found["shorter", "evict"].verdict == "equal"
    late = found["time", "pace"].comparison.difference.mean
    assert late == pytest.approx(0.0 - 0.25, abs=0.01), (
        "pacing is at its start until 20, others have two steps"
    )
    assert found["time", "mask"].verdict == "equal"
    _, rows = means(config, config.verdict, measured)
    assert [row[0].partition(", ")[2] for row in rows][:3] == ["", "age", "length_ratio at the end"]


def test_pairs_are_judged_by_the_endpoint_and_by_what_matters(tmp_path):
    def entropy(cell, method):
        ends = {"none": 1.0, "low_only": 1.2, "high_only": 1.01}
        return np.array([0.0, 0.0, 0.0, ends.get(method, 1.0)])

    config = written("random_rewards", tmp_path, entropy)
    measured = read_all(config, tmp_path)
    judged = judge(config, config.verdict, measured)
    verdicts = {(item.comparison.method, item.comparison.against): item.verdict for item in judged}
    assert verdicts["low_only", "none"] == "more", "its last value, 0.2 above, not its mean"
    assert verdicts["high_only", "none"] == "equal", "0.01 is within 0.05"
    page = render(config, config.verdict, judged, "")
    assert "| clip-low |" in page and "8 of 8" in page
    assert means(config, config.verdict, measured)[0][:2] == ["cell", "GRPO, [0.8, 1.2]"]
    assert len(pair_table(config, judged)[1]) == len(judged)
    assert draw(judged, {name: name for name in config.methods}, tmp_path / "a.png").stat().st_size > 0


def test_uses_of_a_batch_are_compared_across_cells_and_at_a_share_of_training(tmp_path):
    def reward(cell, method):
        return np.array([0.1, 0.2, 0.3, 0.4]) + (0.3 if cell.epochs == 4 else 0.0)

    config = written("reuse", tmp_path, reward)
    judged = judge(config, config.verdict, read_all(config, tmp_path))
    own = [item for item in judged if item.comparison.method == "grpo"]
    found = {item.hypothesis: item.comparison.difference.mean for item in own}
    assert found["four uses"] == pytest.approx(0.3, abs=0.01)
    at_quarter = 0.7 - 0.1
    assert found["the same data"] == pytest.approx(at_quarter, abs=0.01), "the end, against a quarter"


def test_the_largest_rate_lies_between_those_of_the_grid_and_its_power_is_found(tmp_path):
    assert crossing(np.array([1.0, 10.0, 100.0]), np.array([1.0, 1.0, 0.0]), 0.5) == pytest.approx(10**1.5)
    assert crossing(np.array([1.0, 10.0]), np.array([1.0, 1.0]), 0.5) == 10.0
    assert np.isnan(crossing(np.array([1.0, 10.0]), np.array([0.1, 0.0]), 0.5))

    def reward(cell, method):
        return np.full(4, float(cell.learning_rate * cell.staleness <= 5.2))

    config = written("staleness_law", tmp_path, reward, "worlds.factored=null")
    rates = largest_rates(config.verdict, read_all(config, tmp_path), "table", "grpo")
    assert exponents(rates, 8)[0] == pytest.approx(-1.0, abs=1e-6)
    found = {("table", name): rates for name in config.methods}
    assert "-1.00 (-1.00 to -1.00)" in render_law(config, config.verdict, found, "")
    heads, rows = rate_table(config, config.verdict, found)
    assert rows[0][heads.index("exponent from 8 on")] == "-1.00 (-1.00 to -1.00)"
    assert draw_law(config, found, tmp_path / "law.png").stat().st_size > 0
