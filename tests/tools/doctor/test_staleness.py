"""Verdicts on made-up differences; docs/results/doctor.md has verdicts on runs that are sick on purpose."""

import json
import math
import random

import pytest

from bapo_lightning.objectives.divergence import AGES, mismatch_by_age
from bapo_lightning.tools.commands.doctor import main
from bapo_lightning.tools.doctor import curves as names
from bapo_lightning.tools.doctor.causes import facts_of
from bapo_lightning.tools.doctor.staleness import staleness

FACTS = facts_of({})
UPDATES = range(64)  # four on each batch


def recorded(difference, tilt=0.9, rate=1e-3, first_age=0):
    """Curves of a run; `difference` is a function of update and age."""
    noise = random.Random(0)
    ages = [step % 4 + first_age for step in UPDATES]
    found = {names.RATE: ([*UPDATES], [rate] * 64), names.AGE: ([*UPDATES], [float(age) for age in ages])}
    found |= {names.OLDEST: found[names.AGE]}
    for step, age in zip(UPDATES, ages, strict=True):
        value = difference(step, age) * (1 + 0.1 * noise.random())
        bucket = next(name for name, (low, high) in names.AGED.items() if low <= age <= high)
        fresh = {names.MISMATCH: value, names.BIAS: -tilt * value} if age == 0 else {}
        for name, each in {bucket: value, **fresh}.items():
            steps, values = found.setdefault(name, ([], []))
            steps.append(step)
            values.append(each)
    return found


def policy(step, age):
    return 1e-6 + 0.01 * age


def pinned(step, age):
    return 0.01 * (step - 20) if step - age >= 24 else policy(step, age)


@pytest.mark.parametrize(("curves", "kind", "since"), [
    (recorded(policy), "age", 0),
    (recorded(lambda step, age: 0.04 + 0.01 * age, tilt=0.02), "numerics", 0),
    (recorded(lambda step, age: 0.02 + 0.03 * age, tilt=0.1), "age", 0),
    (recorded(pinned), "old weights", 24),
    (recorded(lambda step, age: 5.0, tilt=0.9), "old weights", 0),
    (recorded(lambda step, age: 0.2 + 0.01 * age, tilt=0.4), "distribution", 0),
    (recorded(lambda step, age: 0.5, tilt=1e-7), "distribution", 0),
    (recorded(lambda step, age: 0.03, tilt=0.02, rate=1e-30), "numerics", 0),
    (recorded(lambda step, age: 0.3, tilt=0.4, rate=1e-30), "distribution", 0),
    (recorded(lambda step, age: 0.3, tilt=0.9, rate=1e-30), "old weights", 0),
    (recorded(lambda step, age: 0.03 + step / 100, tilt=0.4, rate=1e-30), "distribution", 0),
    (recorded(lambda step, age: 0.05 * age, first_age=2), "age", 0),
    (recorded(lambda step, age: 0.5, first_age=2), "distribution", 0),
    (recorded(lambda step, age: 0.02 + 0.04 * step, first_age=2), "old weights", 0),
    (recorded(lambda step, age: 0.06 + 0.01 * age, first_age=2), "undecided", 0),
])  # fmt: skip
def test_each_source_is_distinguished(curves, kind, since):
    found = staleness(curves, FACTS)
    assert (found.kind, found.since) == (kind, since) and found.why


def test_two_faulty_batches_and_a_large_level_without_an_alarm_are_no_sure_kind():
    late = recorded(lambda step, age: 0.5 if step >= 60 else policy(step, age), tilt=0.3)
    assert staleness(late, FACTS).kind == "undecided"
    bucket = next(name for name, (low, _) in names.AGED.items() if low == 0)
    steps = [*UPDATES]
    assert staleness({bucket: (steps, [5.0] * 64)}, FACTS).kind == "distribution"
    huge = {names.RATE: ([0, 2**40], [1e-3] * 2), bucket: ([0, 2**40], [1e308] * 2)}
    assert math.isfinite(staleness(huge, FACTS).mean)


def test_slopes_on_age_and_on_time_are_found():
    healthy, sick = (staleness(recorded(each), FACTS).fits[0] for each in (policy, pinned))
    assert healthy.age.mean == pytest.approx(0.0105, abs=1e-3) and healthy.age.excludes_zero
    assert abs(healthy.time.mean) < 1e-4
    assert sick.time.mean == pytest.approx(0.0105, abs=1e-3) and sick.time.excludes_zero
    assert abs(sick.age.mean) < 2e-3
    updates, rates = staleness(recorded(policy), FACTS).fits
    assert (updates.clock, rates.clock) == ("update", "rate")
    assert rates.age.mean == pytest.approx(1e3 * updates.age.mean)


def test_buckets_of_ages_are_the_monitors():
    import torch

    ages = mismatch_by_age(
        *torch.zeros(2, 1), torch.zeros(1, dtype=torch.long), torch.ones(1, dtype=torch.bool)
    )
    assert [*names.AGED] == [f"mismatch/{name}" for name in ages]
    assert [low for low, _ in names.AGED.values()] == [*AGES]


@pytest.mark.parametrize("value", [0.0, 1e-300, 1.0, 1e300])
@pytest.mark.parametrize("length", [1, 2, 5, 40])
def test_no_curve_breaks_the_verdict(value, length):
    steps = [*range(length)]
    for rate in (0.0, 1e-3, 1e300):
        curves = {name: (steps, [value] * length) for name in names.READ} | {
            names.RATE: (steps, [rate] * length)
        }
        for fit in staleness(curves, FACTS).fits:
            assert fit.age is None or not math.isnan(fit.age.mean)
    assert staleness({names.REWARD: (steps, [value] * length)}, FACTS) is None


@pytest.mark.slow
def test_a_canary_run_has_numerics_alone(tmp_path, capsys):
    from bapo_lightning.library import fit

    fit("experiment=quickstart", "debug=canary", "regime=on_policy", "scale.prompts_per_batch=8",
        f"run_folder={tmp_path}/canary")  # fmt: skip
    capsys.readouterr()
    assert main([f"{tmp_path}/canary", "--staleness", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["staleness"]
    assert found["kind"] == "numerics" and found["mean"] < 1e-5 and len(found["fits"]) == 1
