import json
import math
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import yaml

from bapo_lightning.callbacks.alarm import ADVICE, NAN, OFF, UNSEEN_UPDATES, Alarm, build_alarms
from bapo_lightning.data.rollouts.observer import unread
from bapo_lightning.report.detectors import Spike
from bapo_lightning.system.errors import TrainingError

SHIPPED = Path(__file__).resolve().parents[2] / "conf" / "callbacks" / "default.yaml"
ENTROPY = "policy/entropy"
MISMATCH = "mismatch/abs_logp_diff_mean"


def update(index=0, **metrics):
    """All that an alarm looks at; `__` stands for a slash."""
    trainer = SimpleNamespace(should_stop=False)
    named = {name.replace("__", "/"): value for name, value in metrics.items()}
    return SimpleNamespace(index=index, version=index, metrics=named, module=SimpleNamespace(trainer=trainer))


def counts(alarm, values, first=0):
    """`alarms/<name>` after each value of the metric; None: an update without one."""
    updates = [
        update(index) if value is None else update(index, **{alarm.metric: value})
        for index, value in enumerate(values, first)
    ]
    return [alarm.measure(made)[f"alarms/{alarm.name}"] for made in updates]


def resumed(alarm, **options):
    made = Alarm(alarm.name, alarm.metric, **options)
    made.load_state_dict(json.loads(json.dumps(alarm.state_dict())))
    return made


@pytest.mark.parametrize(("options", "values", "expected"), [
    ({"below": 0.1, "above": 2.0}, [0.1, 0.09, 2.0, torch.tensor(2.1), math.nan, math.inf, -math.inf],
     [0, 1, 1, 2, 3, 4, 5]),
    ({"above": 2.0}, [-5.0, math.nan], [0, 1]),
    ({"below": 0.1}, [5.0, math.nan], [0, 1]),
    # Before half of the window was seen nothing is usual.
    ({"spike": Spike(factor=2, window=6)}, [1, 100, 1, 100, 1], [0, 0, 0, 1, 1]),
    # Medians 25.5 (of 50 and 1) and 6 (of 50, 1, 11 and 1; zeros do not count): 11 and 30 are no spikes.
    ({"spike": Spike(factor=10, window=4)}, [50, 1, 11, 0, 0, 0, 1, 30, 1, 1, 1, 30, 10, math.inf],
     [0] * 11 + [1, 1, 2]),
])  # fmt: skip
def test_it_is_on_beyond_its_thresholds_and_for_what_is_no_number(options, values, expected):
    assert counts(Alarm("entropy", ENTROPY, **options), values) == expected


def test_it_warns_when_it_goes_on_and_says_when_it_is_over(capsys):
    counts(Alarm("entropy", ENTROPY, below=0.1, above=2.0), [0.05, 0.04, None, 0.03, 0.5, 3.0])
    collapse, over, explosion = capsys.readouterr().out.splitlines()
    assert collapse.startswith(
        "warning: alarm entropy: policy/entropy is 0.05, below callbacks.alarms.entropy.below=0.1 (policy "
        "version 0). Likely causes: "
    )
    assert "algorithm.positive_share_target" in collapse and "regime.epochs" in collapse
    assert over == "alarm entropy is over: policy/entropy is 0.5 (policy version 4)"
    assert "is 3, above callbacks.alarms.entropy.above=2 (policy version 5)" in explosion
    assert "algorithm.bounds.high.end" in explosion


def test_an_alarm_that_goes_on_and_off_speaks_once_and_is_counted_at_the_end(capsys):
    alarm = Alarm("entropy", ENTROPY, below=0.1, above=2.0)
    counts(alarm, [0.05, 0.5, 0.05, 0.05, 0.5, 0.05])
    alarm = resumed(alarm, below=0.1, above=2.0)
    counts(alarm, [0.5, 0.05])
    alarm.on_train_end(SimpleNamespace(is_global_zero=True), None)
    warning, over, count = capsys.readouterr().out.splitlines()
    assert warning.startswith("warning: alarm entropy: ") and over.startswith("alarm entropy is over: ")
    assert count == "alarm entropy was raised 4 times, for 5 of 8 measured updates"


def test_advice_of_an_alarm_is_read_in_seconds():
    assert {name: len(text) for name, text in {**ADVICE, "nan": NAN}.items() if len(text) > 420} == {}


def test_every_shipped_alarm_has_its_advice_and_short_answers_raise_one(capsys):
    shipped = {alarm.name: alarm for alarm in build_alarms(yaml.safe_load(SHIPPED.read_text())["alarms"])}
    sides = [(each.metric, side) for each in shipped.values() for side in ("below", "above", "spike")
             if getattr(each, side) is not None]  # fmt: skip
    assert sorted(sides) == sorted(ADVICE)
    assert counts(shipped["trained_length"], [0.95, *[0.85] * 64])[-2:] == [0, 1]
    assert "Write a larger regime.max_age, and regime.batches_in_flight=3" in capsys.readouterr().out


def test_patience_counts_measured_updates_in_a_row(capsys):
    alarm = Alarm("entropy", ENTROPY, below=0.1, patience=3)
    assert counts(alarm, [0, 0, 1, 0, None, 0, None, 0, 0, 1, 0]) == [0, 0, 0, 0, 0, 0, 0, 1, 2, 2, 2]
    assert "in 3 measured updates in a row (policy version 7)" in capsys.readouterr().out


def test_a_spike_is_reported_with_what_was_usual(capsys):
    counts(Alarm("gradient", "train/grad_norm", spike=Spike(factor=10, window=4)), [1, 1, 1, 30])
    said = capsys.readouterr().out
    usual = "spike.factor=10 times 1, the median of the updates before"
    assert f"is 30, more than callbacks.alarms.gradient.{usual}" in said and "low probability" in said


def test_a_resume_goes_on_exactly(capsys):
    values = [1, 1, 1, 9, 9, 1, 60, math.nan, 60, 1, 1, 0.1, 0.2, 1]
    options = {"below": 0.5, "spike": Spike(factor=3, window=4), "patience": 2}
    expected = counts(Alarm("entropy", ENTROPY, **options), values)
    said = capsys.readouterr().out
    assert expected == [0, 0, 0, 0, 1, 1, 1, 2, 3, 3, 3, 3, 4, 4]
    for cut in range(len(values)):
        first = Alarm("entropy", ENTROPY, **options)
        before = counts(first, values[:cut])
        assert before + counts(resumed(first, **options), values[cut:], cut) == expected
        assert capsys.readouterr().out == said


def test_alarms_keep_their_states_apart():
    assert Alarm("one", ENTROPY, below=1).state_key != Alarm("two", ENTROPY, below=1).state_key


def test_an_alarm_that_stops_asks_the_trainer_to_end_and_fails_only_once_everything_is_saved(capsys):
    alarm = Alarm("mismatch", MISMATCH, above=0.1, action="stop")
    fine, bad = update(**{MISMATCH: 0.01}), update(index=1, **{MISMATCH: 0.2})
    alarm.measure(fine)
    alarm.teardown(None, None, "fit")
    assert not fine.module.trainer.should_stop
    alarm.measure(bad)
    assert bad.module.trainer.should_stop
    assert capsys.readouterr().out == "alarm mismatch: stopping after this update\n"
    with pytest.raises(TrainingError) as raised:
        alarm.teardown(None, None, "fit")
    for words in (
        f"alarm mismatch: {MISMATCH} is 0.2, above callbacks.alarms.mismatch.above=0.1 (policy version 1)",
        *("temperature", "stale weights", "prefix cache", "bfloat16", "correction="),
        "(callbacks.alarms.mismatch.action=stop); a checkpoint of it is saved in checkpoints/",
    ):
        assert words in str(raised.value)


@pytest.mark.parametrize("action", ["warn", "stop"])
@pytest.mark.parametrize(("metric", "meant", "updates"), [
    ("train/rewrad", "train/reward", [0, -1]),  # nothing of this package makes it: at once, and at the end
    ("val/additons/avg@4", "val/additions/avg@4", [-1]),  # a set may be validated later
    ("val/additons/avg@4", "val/additions/avg@4", [UNSEEN_UPDATES - 1, -1]),
])  # fmt: skip
def test_a_metric_that_nothing_makes_is_named_early_and_at_the_end(metric, meant, updates, action, capsys):
    alarm, told = Alarm("mine", metric, below=0.1, action=action), []
    for index in range(max([2, *(index + 5 for index in updates)])):
        alarm.measure(update(index, train__reward=0.5, **{"val__additions/avg@4": 0.5} if index == 1 else {}))
        told += [index] * capsys.readouterr().out.count(f"metric={metric} so far; did you mean {meant}?")
    alarm.on_train_end(SimpleNamespace(is_global_zero=True), None)
    told += [-1] * capsys.readouterr().out.count(f"metric={metric} so far; did you mean {meant}?")
    assert told == updates


@pytest.mark.parametrize("metric", ["mismatch/lora_update_kept", "staleness/bound_reached"])
def test_nothing_is_reported_of_a_metric_that_needs_adapters_or_an_age_bound(metric, capsys):
    alarm = Alarm("mine", metric, below=0.1)
    assert counts(alarm, [None] * (UNSEEN_UPDATES + 1)) == [0] * (UNSEEN_UPDATES + 1)
    alarm.on_train_end(SimpleNamespace(is_global_zero=True), None)
    assert capsys.readouterr().out == ""


def test_the_configuration_of_an_alarm_needs_no_more_than_metric_and_threshold():
    nodes = {
        "mine": {"metric": ENTROPY, "spike": {"factor": 3}},
        "off": {"metric": ENTROPY, "below": 1, "action": "off"},
        "off_in_yaml": {"metric": ENTROPY, "below": 1, "action": False},
    }
    (made,) = build_alarms(nodes)
    assert (made.name, made.spike, made.patience, made.action) == ("mine", Spike(3, 50), 1, "warn")
    for off in OFF:
        assert Alarm("mine", ENTROPY, below=0.1, action=off).measure(update(policy__entropy=0.0)) == {}
    with pytest.raises(ValueError, match="one of warn, stop, off, got 'shout'"):
        Alarm("mine", ENTROPY, below=0.1, action="shout")


LIMITS = "scale.max_new_tokens=48"
CUT = "123 of 128 answers were cut at scale.max_new_tokens=48"
UNREAD = "126 of 128 answers have no final answer that the reward reads"


@pytest.mark.parametrize(("counts", "begins", "names"), [
    ((128, 123, 126), f"{CUT}, and {UNREAD}: write a larger scale.max_new_tokens, or", "reward=last_number"),
    ((128, 123, 2), f"{CUT}: write a larger scale.max_new_tokens, or", "data.prompt.template"),
    ((128, 3, 126), f"{UNREAD}: ask for the form that it reads (data/prompt=NAME)", "reward=last_number"),
    ((128, 96, 96), None, None),
    ((0, 0, 0), None, None),
])  # fmt: skip
def test_answers_that_cannot_be_read_are_counted_with_the_key(counts, begins, names):
    said = unread(counts, LIMITS)
    assert said is None if begins is None else said.startswith(begins) and names in said


def test_answers_that_are_cut_and_partly_right_are_not_reported():
    assert unread((128, 123, 2), LIMITS, has_right=True) is None
    assert UNREAD in unread((128, 123, 126), LIMITS, has_right=True)


def no_gradient(*rows):
    """What the alarm says after updates with these numbers of samples, cut and unparsable ones."""
    alarm = Alarm("no_gradient", "train/grad_norm", below=1e-12, patience=len(rows))
    for index, row in enumerate(rows):
        names = ("rollout__num_samples", "rollout__cut", "rollout__unparsable")
        made = update(index, **dict(zip(names, row, strict=True)), train__grad_norm=0.0)
        made.module.trainer.datamodule = SimpleNamespace(sampler=SimpleNamespace(limits=LIMITS))
        alarm.measure(made)


def test_no_gradient_looks_first_whether_answers_can_be_read(capsys):
    no_gradient((128, 123, 126), (0, 0, 0))  # the second update on one batch
    said = capsys.readouterr().out
    assert CUT in said and "dapo" not in said
    no_gradient((128, 3, 2), (0, 0, 0))
    said = capsys.readouterr().out
    assert "cut at" not in said and "algorithm=dapo" in said
