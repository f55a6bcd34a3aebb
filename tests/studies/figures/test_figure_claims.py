"""What counts as an ordering that holds, and the numbers that claims are made about."""

import json
import math

import pytest

from bapo_lightning.report.metrics import metric_of
from bapo_lightning.system.errors import DataError
from bapo_lightning.system.run_folder.record import read_tokens
from bapo_lightning.tools.comparison.runs import Run
from studies.figures.catalogue import Claim
from studies.figures.findings import HOLDS, NO_DATA, OPEN, OPPOSITE, Table, adjust, judge
from studies.figures.values import CURVES, MEASURED, PREDICTED, VALUES, rank_correlation

PAIR = Claim("more", "reward_last", more="bapo", less="grpo")


def table(bapo, grpo):
    return {"bapo": {"reward_last": dict(enumerate(bapo))}, "grpo": {"reward_last": dict(enumerate(grpo))}}


@pytest.mark.parametrize(("bapo", "grpo", "verdict"), [
    # Differences 0.1, 0.1, 0.09: paired, the spread of the values does not matter.
    ([0.9, 0.8, 0.7], [0.8, 0.7, 0.61], HOLDS), ([0.8, 0.7, 0.61], [0.9, 0.8, 0.7], OPPOSITE),
    ([0.9, 0.7, 0.8], [0.8, 0.8, 0.7], OPEN), ([0.9], [0.8], NO_DATA), ([], [0.8, 0.7], NO_DATA),
])  # fmt: skip
def test_a_claim_holds_when_the_interval_of_the_paired_differences_excludes_zero(bapo, grpo, verdict):
    assert judge("9", PAIR, table(bapo, grpo)).verdict == verdict


def test_a_claim_about_a_number_is_turned_so_that_positive_agrees():
    values: Table = {"grpo": {"reward_last": {1: -0.5, 2: -0.4, 3: -0.6}}}
    below = judge("5", Claim("below", "reward_last", of="grpo", below=0), values)
    above = judge("5", Claim("above", "reward_last", of="grpo", above=0), values)
    assert (below.verdict, above.verdict) == (HOLDS, OPPOSITE)
    assert below.interval is not None and below.interval.mean == pytest.approx(0.5)
    # t = 0.5 / (0.1 / sqrt 3) = 8.66 with 2 degrees of freedom
    assert below.p_value == pytest.approx(0.01307, abs=1e-4)


@pytest.mark.parametrize(("bapo", "verdict"), [
    ([0.801, 0.702, 0.609], HOLDS),  # differences 0.001, 0.002, -0.001: p = 0.001
    ([0.8, 0.7, 0.61], HOLDS), ([0.9, 0.8, 0.72], OPPOSITE), ([0.82, 0.7, 0.61], OPEN), ([], NO_DATA),
])  # fmt: skip
def test_two_variants_are_alike_when_a_test_of_equivalence_shows_it(bapo, verdict):
    claim = Claim("alike", "reward_last", more="bapo", less="grpo", within=0.02)
    judged = judge("9", claim, table(bapo, [0.8, 0.7, 0.61]))
    assert judged.verdict == verdict
    assert adjust([judged])[0].verdict == verdict


def test_a_spread_is_the_distance_from_the_median_over_seeds():
    claim = Claim("varies", "reward_last", more="bapo", less="grpo", spread=True)
    judged = judge("9", claim, table([0.5, 0.8, 0.9], [0.71, 0.7, 0.7]))
    # 0.3, 0, 0.1 against 0.01, 0, 0
    assert judged.interval is not None and judged.interval.mean == pytest.approx(0.39 / 3)


def test_a_multiple_of_the_other_is_claimed():
    claim = Claim("twice", "reward_last", more="bapo", less="grpo", times=2.0)
    judged = judge("9", claim, table([0.9, 0.8, 0.7], [0.4, 0.3, 0.21]))
    assert judged.interval is not None and judged.interval.mean == pytest.approx((0.1 + 0.2 + 0.28) / 3)


def test_p_values_are_adjusted_over_all_claims():
    strong = judge("9", PAIR, table([0.9, 0.8, 0.7], [0.8, 0.7, 0.61]))
    weak = judge("9", PAIR, table([0.9, 0.7, 0.8], [0.8, 0.8, 0.7]))
    assert strong.p_value is not None and weak.p_value is not None
    adjusted = adjust([weak, strong, judge("9", PAIR, {})])
    expected = [pytest.approx(weak.p_value), pytest.approx(2 * strong.p_value), None]
    assert [verdict.adjusted for verdict in adjusted] == expected


def test_a_verdict_needs_the_adjusted_p_value():
    claim = judge("9", PAIR, table([0.9, 0.8, 0.7], [0.86, 0.75, 0.67]))  # p = 0.020
    assert claim.verdict == HOLDS
    (alone,), together = adjust([claim]), adjust([claim] * 3)
    assert alone.verdict == HOLDS and {verdict.verdict for verdict in together} == {OPEN}


def test_rank_correlation_is_spearmans_with_ties_at_their_mean_rank():
    assert rank_correlation([1, 2, 3, 4], [1, 4, 9, 1000]) == pytest.approx(1)
    assert rank_correlation([1, 2, 3, 4], [4, 3, 2, 1]) == pytest.approx(-1)
    # ranks 1, 2.5, 2.5, 4 against 1, 3, 2, 4: by hand 4.5 / sqrt(4.5 * 5)
    assert rank_correlation([1, 2, 2, 3], [1, 3, 2, 4]) == pytest.approx(4.5 / math.sqrt(22.5))
    assert rank_correlation([1, 1, 1], [1, 2, 3]) is None
    assert rank_correlation([1, 2], [1, 2]) is None


def run_with(**curves):
    named = {name.replace("__", "/"): (list(range(len(values))), values) for name, values in curves.items()}
    return Run("run", None, curves={name: ([], []) for name in CURVES} | named)


def test_values_of_a_run():
    run = run_with(
        bapo__positive_share=[0.3, 0.4, 0.6, 0.7],
        entropy_rule__predicted_delta=[-1.0, 2.0, -3.0],
        entropy_rule__measured_delta=[-2.0, -1.0, -4.0],
    )
    assert VALUES["negative_loss_share"](run) == pytest.approx(0.5)
    assert VALUES["negative_loss_share_first_half"](run) == pytest.approx(0.65)
    assert VALUES["entropy_rule_sign_agreement"](run) == pytest.approx(2 / 3)
    assert VALUES["entropy_rule_correlation"](run) == pytest.approx(1)
    assert VALUES["clip_fraction"](run) is None
    assert VALUES["probability_entropy_correlation"](run) is None


def test_correlations_of_recorded_tokens(tmp_path):
    lines = [{"step": 3, "ratio": [1.0, 2.0], "probability": [0.9, 0.2], "entropy": [1.0, 2.0]}]
    lines += [{"step": 7, "ratio": [0.1], "probability": [0.1], "entropy": [0.1]}]
    (tmp_path / "tokens.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    columns = read_tokens(tmp_path)
    assert columns["step"] == [3, 3, 7] and columns["ratio"] == [1.0, 2.0, 0.1]
    assert VALUES["distance_probability_correlation"](Run("run", None, tokens=columns)) == pytest.approx(-1)


def test_a_torn_record_of_tokens_is_named(tmp_path):
    (tmp_path / "tokens.jsonl").write_text('{"step": 0, "ratio": [1.0], "probability": [0.5, 0.5]}\n')
    with pytest.raises(DataError, match=r"tokens\.jsonl, line 1"):
        read_tokens(tmp_path)
    with pytest.raises(DataError, match=r"token_writer\.every"):
        read_tokens(tmp_path / "nowhere")


def test_every_curve_of_the_figures_that_cannot_be_negative_has_its_limits():
    unlimited = [metric for metric in CURVES if metric_of(metric).limits is None]
    assert unlimited == ["train/reward", PREDICTED, MEASURED]
