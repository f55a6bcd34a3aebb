"""Rules for alarms and the watchdog, broken on purpose."""

import pytest
from tests.configuration.compositions import found

MINE = "+callbacks.alarms.mine="


@pytest.mark.parametrize(
    "overrides",
    [
        ["callbacks.alarms.entropy.action=stop", "callbacks.alarms.entropy.below=0.05"],
        [
            "callbacks.alarms.entropy.action=off",
            "callbacks.alarms.entropy.below=null",
            "callbacks.alarms.entropy.above=null",
        ],
        [MINE + "{metric:train/reward,below:0.1}"],
        [MINE + "{metric:val/additions/avg@4,below:0.1,patience:2,action:stop}"],
        [MINE + "{metric:train/loss,spike:{factor:3}}"],
        ["~callbacks.alarms.gradient"],
        ["callbacks.watchdog.minutes=0.5"],
        ["callbacks.watchdog.minutes=0"],
    ],
)
def test_what_the_readme_promises_can_be_written(overrides):
    assert found(*overrides) == []


@pytest.mark.parametrize(
    ("override", "complaint"),
    [
        ("callbacks.alarms.mismatch.above=0", "callbacks.alarms.mismatch.above=0: no two computations agree"),
        (
            "callbacks.alarms.mismatch.above=low",
            "callbacks.alarms.mismatch.above=low must be a number, or null",
        ),
        (
            "callbacks.alarms.entropy.below=true",
            "callbacks.alarms.entropy.below=True must be a number, or null",
        ),
        (
            "callbacks.alarms.entropy.above=nan",
            "callbacks.alarms.entropy.above=nan must be a number, or null",
        ),
        (
            "callbacks.alarms.mismatch.action=shout",
            "callbacks.alarms.mismatch.action=shout is none of its values; write one of warn, stop, off",
        ),
        (
            "callbacks.alarms.mismatch.above=null",
            "the alarm has no threshold; write one, or callbacks.alarms.mismatch.action=off",
        ),
        (
            "callbacks.alarms.entropy.below=4",
            "callbacks.alarms.entropy.below=4 is not below callbacks.alarms.entropy.above=4.0",
        ),
        (
            "callbacks.alarms.entropy.patience=0",
            "callbacks.alarms.entropy.patience=0 must be a whole number of at least 1",
        ),
        (
            "callbacks.alarms.entropy.patience=1.5",
            "callbacks.alarms.entropy.patience=1.5 must be a whole number of at least 1",
        ),
        (
            "callbacks.alarms.gradient.spike.factor=1",
            "callbacks.alarms.gradient.spike.factor=1 must be a number above 1",
        ),
        (
            "callbacks.alarms.gradient.spike.window=0",
            "callbacks.alarms.gradient.spike.window=0 must be a whole number of at least 1",
        ),
        (
            "callbacks.alarms.gradient.spike=20",
            "callbacks.alarms.gradient.spike=20 must be e.g. {factor: 50, window: 50}, or null",
        ),
        (
            "+callbacks.alarms.gradient.spike.size=2",
            "callbacks.alarms.gradient.spike.size is not an option of callbacks.alarms.gradient.spike",
        ),
        (
            "+callbacks.alarms.entropy.belwo=2",
            "callbacks.alarms.entropy.belwo is not an option of an alarm; did you mean below?",
        ),
        (
            MINE + "{metric:train/loss,spike:{window:9}}",
            "callbacks.alarms.mine.spike.factor is missing; it must be a number above 1",
        ),
        (MINE + "{below:0.1}", "callbacks.alarms.mine.metric is missing; it must be text"),
        (
            MINE + "0.1",
            "callbacks.alarms.mine=0.1 is no alarm; write e.g. {metric: train/reward, below: 0.1}",
        ),
        ("callbacks.alarms=3", "callbacks.alarms=3 must map names to alarms"),
        ("callbacks.watchdog.minutes=-1", "callbacks.watchdog.minutes=-1 must be a number of minutes"),
        ("callbacks.watchdog.minutes=never", "callbacks.watchdog.minutes=never must be a number of minutes"),
    ],
)
def test_one_mistake_gives_one_complaint_that_names_it(override, complaint):
    messages = found(override)
    assert len(messages) == 1, messages
    assert complaint in messages[0]
