"""Numbers of every monitor, by hand from the ten tokens of `token_table`."""

from array import array
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from math import isnan, nan
from types import SimpleNamespace

import pytest
import torch
from tests.callbacks.monitors.token_table import VERSION, VERSIONS, groups, module, search, update
from tests.configuration.compositions import validated
from tests.data.rollouts.scripted import ScriptedEngine, sampler
from tests.token_tables import Recording, table

from bapo_lightning.callbacks.alarm import Alarm
from bapo_lightning.callbacks.monitors import training
from bapo_lightning.callbacks.monitors.bounds import ClipBoundsMonitor, ContributionMonitor, forecast
from bapo_lightning.callbacks.monitors.entropy import (
    CorrectionMonitor,
    EntropyMonitor,
    EntropyRuleMonitor,
    MismatchMonitor,
    RatioMonitor,
)
from bapo_lightning.callbacks.monitors.gradient import GradientMonitor
from bapo_lightning.callbacks.monitors.training import StalenessMonitor, ThroughputMonitor, TrainingMonitor
from bapo_lightning.callbacks.validation import Validation, console_lines, one_line
from bapo_lightning.data.batches.batch import collate
from bapo_lightning.data.rollouts.answers import ValidationSet
from bapo_lightning.modules.bound_rules import FixedBounds
from bapo_lightning.objectives.corrections.step_size import ess_step_scale
from bapo_lightning.objectives.corrections.tokens import masked_is, truncated_is
from bapo_lightning.report.progress.terminal import get_console
from bapo_lightning.rollout.engine import Generation
from bapo_lightning.types import FinishReason, Origin, Problem, Score, ScoreStatus, Segment

FRESH = {name: (VERSION,) * len(versions) for name, versions in VERSIONS.items()}


def measured(monitor, at=None):
    return {name: float(value) for name, value in monitor.measure(at or update()).items()}


def about(**numbers):
    """Numbers of float32 tokens, their names without the group `room`."""
    room = numbers.pop("room")
    return pytest.approx({f"{room}/{name}": value for name, value in numbers.items()}, abs=2e-6)


@pytest.mark.parametrize("monitor", [
    TrainingMonitor(), EntropyMonitor(), EntropyRuleMonitor(every=1), ClipBoundsMonitor(),
    ContributionMonitor(), StalenessMonitor(), MismatchMonitor(), CorrectionMonitor(),
    RatioMonitor(), GradientMonitor(cosine=True), ThroughputMonitor(),
    Alarm("entropy", "policy/entropy", below=0.1),
], ids=lambda monitor: type(monitor).__name__)  # fmt: skip
def test_a_monitor_needs_the_columns_that_it_reads(monitor):
    fresh = update(FRESH)
    found = Recording(fresh.tokens.columns)
    owner = module()
    owner.correction, owner.mean_entropy = truncated_is, lambda batch: torch.tensor(0.5)
    monitor.measure(replace(fresh, tokens=found, module=owner))
    assert found.read == monitor.needs


def test_training_counts_samples_and_cut_gradients_by_sign():
    monitor = TrainingMonitor()
    found = measured(monitor)
    progress = {name: found.pop(name) for name in ("progress/samples", "progress/tokens")}
    assert found == about(
        room="train",
        reward=0.5,  # (1 + 0 + 1 + 0) / 4
        shaped_reward=0.375,  # (1 + 0 + 1 - 0.5) / 4
        right_and_finished=0.5,  # a, c
        response_length=2.5,  # (3 + 1 + 1 + 5) / 4
        response_length_positive=2,  # a, c: (3 + 1) / 2
        response_length_negative=3,  # b, d: (1 + 5) / 2
        clip_fraction=0.3,  # a1, b1, d1 of ten
        clip_fraction_positive=0.25,  # a1 of a1, a2, a3, c1
        clip_fraction_negative=1 / 3,  # b1, d1 of b1, d1 .. d5
        learning_rate=0.5,
    )
    assert progress == {"progress/samples": 6, "progress/tokens": 14}
    resumed = TrainingMonitor()
    resumed.load_state_dict(monitor.state_dict())
    found = measured(resumed)
    assert (found["progress/samples"], found["progress/tokens"]) == (12, 28)


def test_a_right_answer_that_was_cut_is_not_finished():
    p, q = groups()
    cut = replace(p.samples[0], rollout=replace(p.samples[0].rollout, finish=FinishReason.LENGTH))
    batch = collate([replace(p, samples=(cut, *p.samples[1:])), q], update().batch.metrics)
    found = measured(TrainingMonitor(), update(batch=batch))
    assert (found["train/reward"], found["train/right_and_finished"]) == (0.5, 0.25)


def test_bounds_are_the_means_over_the_searches():
    # (0.7 + 0.9) / 2, (1.2 + 1.6) / 2, one of two
    assert measured(ClipBoundsMonitor()) == about(room="bapo", clip_low=0.8, clip_high=1.4, target_met=0.5)


def test_only_what_was_searched_can_meet_its_target():
    empty = search(0.6, 1.2, met=True, share=nan)  # nothing to balance
    searches = [search(0.7, 1.2, met=True), search(0.9, 1.6, met=False), empty]
    assert measured(ClipBoundsMonitor(), update(searches=searches))["bapo/target_met"] == 0.5
    fixed = [FixedBounds(0.8, 1.2).choose([])]
    assert isnan(measured(ClipBoundsMonitor(), update(searches=fixed))["bapo/target_met"])


def test_the_contribution_is_that_of_the_alive_tokens():
    # weight x behaviour x ratio x |advantage|.
    # Positives: a2 0.05, a3 0.03, c1 0.02, together 0.1; clipped: a1 0.08.
    # Negatives: d2 .. d5 0.1 x (0.35 + 0.3 + 0.25 + 0.1), together 0.1; clipped: b1 0.01, d1 0.01.
    assert measured(ContributionMonitor()) == about(
        room="bapo",
        positive_share=0.5,  # 0.1 / (0.1 + 0.1)
        positive_share_unclipped=0.6,  # 0.18 / (0.18 + 0.12)
        positive_token_fraction=0.4,  # a1, a2, a3, c1 of ten
    )
    # Without the behaviour's probability, positives: a2 0.1, a3 0.12, c1 0.2; clipped: a1 0.16.
    # Negatives: 0.1 x (1.75 + 1.5 + 1 + 1) = 0.525; clipped: b1 0.05, d1 0.05.
    plain = measured(ContributionMonitor(), update(module=module("none")))
    assert plain["bapo/positive_share"] == pytest.approx(0.42 / 0.945)
    assert plain["bapo/positive_share_unclipped"] == pytest.approx(0.58 / 1.205)


def test_entropy_is_a_mean_and_the_kl_is_taken_to_the_behaviour_policy():
    # r = policy / behaviour: 1.6, 1, 1.2, 0.5, 1, 0.5, 1.75, 4.5, 1, 0.5, whose product is 1.89.
    # k3: the mean of r - 1 - ln r = (3.55 - 0.6365768) / 10
    assert measured(EntropyMonitor()) == about(room="policy", entropy=0.55, approx_kl=0.29134232)


def test_the_entropy_rule_sorts_alive_tokens_into_quadrants_and_measures_when_due():
    asked = []
    mean_entropy = lambda batch: asked.append(batch) or torch.tensor(0.6)  # noqa: E731
    made = update(module=SimpleNamespace(last_learning_rate=0.5, mean_entropy=mean_entropy))
    # Alive A: a2 2, a3 2, c1 2, d2 .. d5 -1 each; |A| adds up to 10, and the mean of A is 0.2. The mean of ln
    # policy is ln(4.725e-7) / 10 = -1.4565229, probability 0.233: c1 and d5 are below it.
    # Covariance: sum of A ln policy / 10 = ln((0.5 x 0.3 x 0.1)^2 / (0.35 x 0.9 x 0.25 x 0.05)) / 10
    # = ln(2 / 35) / 10 = -0.2862201; minus 0.2 x -1.4565229 is 0.0050845; times -0.5
    expected = {
        "predicted_delta": -0.00254224,
        "positive_high_prob": 0.4,  # a2, a3
        "positive_low_prob": 0.2,  # c1
        "negative_high_prob": 0.3,  # d2, d3, d4
        "negative_low_prob": 0.1,  # d5
    }
    assert measured(EntropyRuleMonitor(every=3), made) == about(room="entropy_rule", **expected)
    assert measured(EntropyRuleMonitor(every=0), made) == about(room="entropy_rule", **expected)
    assert asked == []
    due = measured(EntropyRuleMonitor(every=2), made)
    assert due == about(room="entropy_rule", **expected, measured_delta=0.05)  # 0.6 - 0.55
    assert asked == [made.batch]


def test_ages_are_split_where_the_group_was_complete():
    # Ages 3 1 1 | 1 | 2 | 3 3 2 2 2 add up to 20. The 4 tokens of p waited 5 - 4 updates, the 6 of q 5 - 3.
    numbers = {
        "age_mean": 2, "age_max": 3, "age_queueing_mean": (4 * 1 + 6 * 2) / 10, "age_generating_mean": 0.4,
        "segments_mean": (2 + 1 + 1 + 2) / 4, "masked_tokens": 0,
    }  # fmt: skip
    assert measured(StalenessMonitor()) == about(room="staleness", **numbers)


def test_tokens_that_are_too_old_to_be_trained_on_have_no_age():
    # Left: 1 1 | 1 | 2 | 2 2 2, 11 in 7 tokens; 3 of p waited 1 update, 4 of q 2: all of their age
    numbers = {
        "age_mean": 11 / 7, "age_max": 2, "age_queueing_mean": 11 / 7, "age_generating_mean": 0,
        "segments_mean": 1.5, "masked_tokens": 3,  # a1, d1, d2
    }  # fmt: skip
    assert measured(StalenessMonitor(), update(oldest_trained=3)) == about(room="staleness", **numbers)


@pytest.mark.parametrize("regime", [SimpleNamespace(max_age=6), SimpleNamespace(max_age=None), None])
def test_the_bound_counts_the_largest_age_so_far_even_after_a_resume(regime):
    monitor, resumed = StalenessMonitor(), StalenessMonitor()
    trainer = SimpleNamespace(datamodule=SimpleNamespace(**({} if regime is None else {"regime": regime})))
    found = []
    for made in (update(FRESH), update(), update(FRESH)):  # ages up to 0, 3, 0
        monitor.on_train_start(trainer, None)
        found.append(measured(monitor, made).get("staleness/bound_reached"))
        resumed.load_state_dict(monitor.state_dict())
        monitor, resumed = resumed, StalenessMonitor()
    assert found == ([0, 0.5, 0.5] if regime and regime.max_age else [None] * 3)


def buckets(found, family):
    return {name.removeprefix(family): value for name, value in found.items() if name.startswith(family)}


def overall(found):
    families = ("mismatch/abs_logp_diff_age_", "mismatch/kl_depth_")
    return {name: value for name, value in found.items() if not name.startswith(families)}


def test_mismatch_is_measured_on_tokens_that_the_trained_version_sampled():
    # ln r of the ratios to the behaviour policy: 0.4700036, 0.1823216, -0.6931472 (b1, d1, d5), 0.5596158,
    # 1.5040774, and 0 three times
    numbers = {
        "abs_logp_diff_mean": 0.47954599, "abs_logp_diff_max": 1.5040774, "ratio_max": 4.5,
        "kl": 0.29134232, "logp_diff_mean": 0.06365768,  # ln 1.89 / 10
    }  # fmt: skip
    assert overall(measured(MismatchMonitor(), update(FRESH))) == about(room="mismatch", **numbers)
    assert overall(measured(MismatchMonitor())) == {}


def test_mismatch_by_age_takes_tokens_of_all_ages():
    # Ages 3 1 1 | 1 | 2 | 3 3 2 2 2. Age 1: a2, a3, b1. Ages 2 and 3: c1, d3, d4, d5 and a1, d1, d2.
    found = buckets(measured(MismatchMonitor()), "mismatch/abs_logp_diff_age_")
    assert {ages for ages, value in found.items() if isnan(value)} == {"0", "4_to_7", "8_to_15", "16_up"}
    assert found["1"] == pytest.approx((0 + 0.1823216 + 0.6931472) / 3)
    old = 1.5040774 + 0.6931472 + 0.4700036 + 0.6931472 + 0.5596158  # d3, d5, a1, d1, d2
    assert found["2_to_3"] == pytest.approx(old / 7)
    made = update()
    origin = torch.tensor([0, 0, 0, 0, Origin.EXPERT, 1, 0, 0, Origin.TEMPERED, 0])  # c1, d4
    sampled = measured(MismatchMonitor(), replace(made, tokens=replace(made.tokens, origin=origin)))
    assert sampled["mismatch/abs_logp_diff_age_2_to_3"] == pytest.approx(old / 5)
    fresh = measured(MismatchMonitor(), update(FRESH))
    assert fresh["mismatch/abs_logp_diff_age_0"] == fresh["mismatch/abs_logp_diff_mean"]


def test_mismatch_by_depth_counts_the_prompt_and_leaves_out_what_no_version_sampled():
    made = update()
    found = buckets(measured(MismatchMonitor(), made), "mismatch/kl_depth_")
    assert found["0_to_15"] == pytest.approx(0.29134232) and isnan(found["16_to_63"])
    p, q = groups()
    long = [replace(one, rollout=replace(one.rollout, prompt_ids=array("i", [1] * 61))) for one in q.samples]
    origin = made.tokens.origin.clone()
    origin[4] = Origin.EXPERT  # c1
    batch = collate([p, replace(q, samples=tuple(long))], {})
    made = replace(made, tokens=replace(made.tokens, origin=origin), batch=batch)
    found = buckets(measured(MismatchMonitor(), made), "mismatch/kl_depth_")
    # r - 1 - ln r: a1 0.1299964, a2 0, a3 0.0176784, b1 0.1931472; d1, d2, d3 at 61, 62, 63 and d4, d5
    assert found["0_to_15"] == pytest.approx((0.1299964 + 0.0176784 + 0.1931472) / 4)
    assert found["16_to_63"] == pytest.approx((0.1931472 + 0.1903842 + 1.9959226) / 3)
    assert found["64_to_255"] == pytest.approx(0.1931472 / 2)


def test_the_spread_of_the_ratios_is_to_the_behaviour_policy():
    # 1.6, 1, 1.2, 0.5, 1, 0.5, 1.75, 4.5, 1, 0.5 add up to 13.55, their squares to 31.0625 and those of
    # r - 1 to 31.0625 - 2 x 13.55 + 10 = 13.9625
    expected = {"effective_sample_size": 13.55**2 / 310.625, "chi_square": 1.39625}
    assert measured(RatioMonitor()) == about(room="ratio", **expected)
    made = update(module=SimpleNamespace(correction=truncated_is, step_scale=None))
    corrected = replace(made, tokens=made.tokens.corrected(truncated_is(made.tokens)))
    assert measured(RatioMonitor(), corrected) == about(room="ratio", **expected)
    without = replace(made.tokens, origin=torch.tensor([0, 0, 0, 0, 0, 1, 0, Origin.TEMPERED, 0, 0]))
    left = {"effective_sample_size": 9.05**2 / 9 / 10.8125, "chi_square": 1.7125 / 9}  # without 4.5
    assert measured(RatioMonitor(), replace(made, tokens=without)) == about(room="ratio", **left)


def test_a_batch_that_was_scored_when_it_entered_has_its_mismatch_already():
    p, q = groups(FRESH)
    scored = replace(p.samples[0], scores={"proximal_logp": [-2.0] * 3})
    batch = collate([replace(p, samples=(scored, *p.samples[1:])), q], {})
    assert overall(measured(MismatchMonitor(), update(FRESH, batch=batch))) == {}


@pytest.mark.parametrize(("correction", "numbers"), [
    # min(proximal / behaviour, 2) is 1 eight times, 2 for d3 (3 truncated) and 0.5 for d5
    (truncated_is, {
        "weight_mean": 1.05, "weight_min": 0.5, "masked_fraction": 0, "truncated_fraction": 0.1,
        "effective_sample_size": 0.9,  # 1.05^2 / ((8 + 4 + 0.25) / 10)
    }),
    (partial(masked_is, low=0.6, high=2.5), {
        "weight_mean": 0.8, "weight_min": 0, "masked_fraction": 0.2, "truncated_fraction": 0,
        "effective_sample_size": 0.8,  # 0.8^2 / (8 / 10)
    }),
])  # fmt: skip
def test_a_correction_weighs_the_proximal_policy_against_the_behaviour_policy(correction, numbers):
    made = update(module=SimpleNamespace(correction=correction, step_scale=None))
    corrected = replace(made, tokens=made.tokens.corrected(correction(made.tokens)))
    assert measured(CorrectionMonitor(), corrected) == about(room="correction", **numbers)


def test_a_rule_for_the_step_is_shown_with_or_without_a_correction():
    assert measured(CorrectionMonitor()) == {}
    rule = {"step_scale": ess_step_scale, "last_step_scale": 0.25}
    without = update(module=SimpleNamespace(correction=None, **rule))
    assert measured(CorrectionMonitor(), without) == {"correction/step_scale": 0.25}
    both = update(module=SimpleNamespace(correction=truncated_is, **rule))
    both = replace(both, tokens=both.tokens.corrected(truncated_is(both.tokens)))
    assert len(measured(CorrectionMonitor(), both)) == 6


def test_throughput_is_of_the_update_and_the_step_is_all_of_the_time_between_two(monkeypatch):
    clock = iter([1.0, 3.0, 7.5])
    monkeypatch.setattr(training.time, "perf_counter", lambda: next(clock))
    monitor = ThroughputMonitor()
    monitor.on_train_start(None, None)
    # 10 tokens in 2 seconds; 7.5 - 3
    assert measured(monitor) == {"train/tokens_per_second": 5.0, "time/step_seconds": 4.5}


RIGHT, WRONG = ScoreStatus.CORRECT, ScoreStatus.WRONG
NONE, LATE = ScoreStatus.UNPARSABLE, ScoreStatus.TIMEOUT
# verdict, answer, tokens, at the token limit; four answers to each of two problems
ANSWERS = [(RIGHT, "5", 2, False), (RIGHT, "5", 2, False), (WRONG, "7", 3, False), (NONE, "", 8, True)]
ANSWERS += [(WRONG, "3", 1, False), (WRONG, "3", 1, False), (RIGHT, "4", 2, False), (LATE, "", 5, True)]


def generate(requests, sampling):
    assert len(requests) == len(ANSWERS)
    reasons = {True: FinishReason.LENGTH, False: FinishReason.STOP}
    return [Generation(Segment([1] * n, [-1.0] * n, VERSION), reasons[is_cut]) for *_, n, is_cut in ANSWERS]


@pytest.mark.parametrize("first", [True, False])
def test_validation_judges_its_sets_when_it_is_due_before_the_first_update_and_after_the_last(first):
    def verdicts(problems, completions):
        return [Score(float(status is RIGHT), status, answer) for status, answer, *_ in ANSWERS]

    engine = SimpleNamespace(version=VERSION, generate=generate)
    data_module = SimpleNamespace(
        num_updates=5,
        engine_for_evaluation=nullcontext,
        sampler=replace(sampler(ScriptedEngine(8), 8, max_restarts=0), engine=engine, reward=verdicts),
    )
    trainer = SimpleNamespace(datamodule=data_module, is_global_zero=True, global_step=0)
    sums = ValidationSet("sums", [Problem("1", "", "5"), Problem("2", "", "4")], num_samples=4, seed=0)
    written = []
    validation = Validation(2, first, validation_sets=[sums])
    validation.on_train_start(trainer, None)
    for index in range(5):
        outputs = {"metrics": {}}
        validation.on_train_batch_end(trainer, None, outputs, None, index)
        written.append(outputs["metrics"])
    assert [bool(metrics) for metrics in written] == [first, True, False, True, True]
    assert written[0] == (written[1] if first else {})  # of the same answers
    # pass@2: both of two draws wrong, (1 - 1/6 + 1 - 3/6) / 2; maj@4: 5 wins and is right, 3 is wrong
    numbers = {
        "avg@4": 3 / 8, "pass@2": 2 / 3, "pass@4": 1, "maj@4": 0.5, "right_and_finished": 3 / 8,
        "response_length": 24 / 8, "cut_fraction": 0.25, "unparsable_fraction": 0.125,
        "timeout_fraction": 0.125, "failed_fraction": 0,
    }  # fmt: skip
    assert written[1] == about(room="val/sums", **numbers)


@pytest.mark.parametrize(("algorithm", "advantages", "said"), [
    ("bapo", [1.0, -1.0, -1.0, -1.0], "of positive tokens about 0.25, target 0.4: it will usually run"),
    ("bapo", [1.0, 1.0, -1.0], "tokens about 0.67, target 0.4: it will usually stay at [0.60"),
    ("bapo_rest", [1.0, 1.0, -1.0], "it will usually stay at [0.80, 1.20]"),
    ("bapo", [2.0, -3.0], "it will move between [0.60, 1.20] and [0.90, 3.00]"),
    ("bapo_authors_code", [1.0, 1.0, -1.0], "ratio of positive tokens about 2.00, target 1: it will"),
    ("bapo", [0.0, 0.0], "no sample of the first minibatch has an advantage"),
])  # fmt: skip
def test_the_forecast_compares_the_natural_share_with_the_target(algorithm, advantages, said):
    rule = validated(f"algorithm={algorithm}", "algorithm.positive_share_target=0.4").algorithm.bounds.make()
    assert said in forecast(rule, table(advantages))


def test_a_long_text_is_one_line_with_its_end():
    assert one_line("two\n  lines", 24) == "two lines"
    shortened = one_line("The question is: " + "word " * 50 + "answer 42", 24)
    assert len(shortened) == 24 and shortened.startswith("The") and shortened.endswith("answer 42")


@pytest.mark.parametrize(("asked", "num_lines"), [("1+1=", 2), ("How many are left? " * 9, 3)])
def test_a_preview_uses_the_width_of_the_console(asked, num_lines):
    text = "It is so: " + "2 " * 90 * (num_lines - 2)
    answer = SimpleNamespace(score=SimpleNamespace(status="wrong"), text=text)
    chosen = SimpleNamespace(name="own", num_samples=1, problems=[Problem("1", asked, "2")])
    lines = console_lines(chosen, [answer], {"val/own/avg@1": 0.0}, 0)
    width = get_console().width
    assert len(lines) == num_lines and all(len(line) <= width for line in lines)
    assert num_lines == 2 or min(map(len, lines[1:])) > width - 3
