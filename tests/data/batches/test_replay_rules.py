"""What past groups are worth, by hand."""

import math
from dataclasses import replace

import pytest
from tests.builders import group, rollout
from tests.configuration.compositions import found

from bapo_lightning.algorithms.pipo import ProgressReplay
from bapo_lightning.algorithms.spear import SelfImitation
from bapo_lightning.data.batches.replay_queue import ReplayQueue, ReuseBuffer, is_replayed, marked_as_replayed
from bapo_lightning.data.rollouts.regime import Regime
from bapo_lightning.types import Origin

REUSE = {"max_age": 7, "reuse_share": 0.5, "max_reuses": 1}


def made(name, rewards, advantages=(), version=0):
    answers = [rollout([1], [2, index], [-1.0, -1.0], version) for index in range(len(rewards))]
    return group(name, answers, rewards, advantages)


def test_self_imitation_keeps_what_the_policy_did_better_than_usual():
    one = made("a", [1.0, 0.0, 0.5], [2.0, -1.0, 0.5])
    kept = SelfImitation(above=1.0).kept(one)
    assert (kept.samples, kept.advantages) == (one.samples[:1], (2.0,))
    assert SelfImitation(above=2.0).kept(one) is None
    expert = replace(one.samples[0], rollout=replace(one.samples[0].rollout, origin=Origin.EXPERT))
    kept = SelfImitation().kept(replace(one, samples=(expert, *one.samples[1:])))
    assert (kept.samples, kept.advantages) == (one.samples[2:], (0.5,))


def test_its_advantages_are_what_exceeds_the_median_of_earlier_group_means():
    rule = SelfImitation(window=3, ramp=4)
    assert not rule.is_ready
    rule.valued([], [made("a", [0.0, 0.2]), made("b", [1.0, 0.0])])  # means 0.1 and 0.5
    assert rule.is_ready
    (again,) = rule.valued([made("c", [1.0, 0.2])], [made("d", [1.0, 1.0]), made("e", [1.0, 0.6])])
    assert again.advantages == pytest.approx((0.7, 0.0))  # 1 - 0.3, and nothing below the baseline
    assert again.weight == pytest.approx((1 - math.cos(math.pi * 2 / 4)) / 2)
    (again,) = rule.valued([made("c", [1.0, 0.2])], [])  # of the last three means: 0.5, 1.0, 0.8
    assert again.advantages == pytest.approx((0.2, 0.0))
    rule.valued([], [])
    assert rule.valued([made("c", [1.0])], [])[0].weight == 1.0  # the ramp is over


def test_progress_goes_forwards_after_a_rise_and_slowly_backwards_after_a_fall():
    rule = ProgressReplay(window=2, damping=0.1)
    for mean in (0.2, 0.4):
        assert not rule.is_ready
        rule.valued([], [made("a", [mean])])
    assert rule.is_ready
    past = made("b", [1.0, 0.0], [1.0, -1.0])
    (again,) = rule.valued([past], [made("c", [0.5])])  # (0.5 - 0.3) / 0.1
    assert again.advantages == pytest.approx((2.0, -2.0)) and again.weight == 1.0
    (again,) = rule.valued([past], [made("c", [0.35])])  # 0.1 (0.35 - 0.45) / 0.05
    assert again.advantages == pytest.approx((-0.2, 0.2))


def test_progress_is_limited_and_equal_rewards_are_no_division_by_zero():
    rule = ProgressReplay(window=2, by_magnitude=True, limit=3.0)
    for _ in range(2):
        rule.valued([], [made("a", [0.5])])
    past = made("b", [1.0, 0.0, 0.0], [2.0, -1.0, -1.0])
    (again,) = rule.valued([past], [made("c", [0.7])])  # the history has no spread: 0.2 / 1
    assert again.advantages == pytest.approx((0.3, -0.15, -0.15))  # 0.2 (2, -1, -1) / (4 / 3)
    (again,) = rule.valued([past], [made("c", [9.0])])
    assert again.advantages == (3.0, -3.0, -3.0)
    assert rule.kept(past) is past and rule.kept(made("d", [1.0, 1.0], [0.0, 0.0])) is None


@pytest.mark.parametrize("rule", [SelfImitation, ProgressReplay])
def test_a_rule_goes_on_from_its_state(rule):
    one, other = rule(window=3), rule(window=3)
    for number in range(5):
        one.valued([], [made("a", [0.1 * number**2])])
    other.load_state_dict(one.state_dict())
    past = [made("b", [1.0, 0.0], [1.0, -1.0])]
    for mean in (0.9, 0.2):
        assert one.valued(past, [made("c", [mean])]) == other.valued(past, [made("c", [mean])])


def test_the_buffer_holds_the_newest_samples_and_gives_none_before_its_rule_is_ready():
    rule = SelfImitation(capacity=3)
    buffer = ReuseBuffer(Regime("reuse", 1, 2, **REUSE), groups_per_batch=4, rule=rule)
    groups = [made(name, [1.0, 1.0, 0.0], [0.5, 0.5, -1.0]) for name in "ab"]
    buffer.add(groups)
    assert len(buffer) == 1 and buffer.choose(1) == []
    rule.valued([], groups)
    (chosen,) = buffer.choose(1)
    assert chosen.problem.id == "b" and is_replayed(chosen) and len(chosen.samples) == 2
    assert not is_replayed(groups[1]) and len(buffer) == 0  # it was reused as often as it may be


@pytest.mark.parametrize("place", ["before", "after"])
def test_reused_groups_have_minibatches_of_their_own(place):
    regime = Regime("reuse", 2, 4, reuse_minibatches=place, **REUSE)
    buffer = ReuseBuffer(regime, groups_per_batch=8)
    buffer.add([made(name, [1.0, 0.0]) for name in "abc"])
    reused = buffer.choose(0)
    assert len(reused) == 2  # three would leave a minibatch half empty
    queue = ReplayQueue(2, 4, seed=0, replayed=place)
    queue.put([made(str(number), [0.0, 1.0]) for number in range(6)] + reused)
    served = [queue.take() for _ in range(8)]
    own = [all(is_replayed(item) for item in part) for part in served]
    assert own == ([True, False, False, False] if place == "before" else [False, False, False, True]) * 2
    assert not any(
        is_replayed(item) for part, all_own in zip(served, own, strict=True) for item in part if not all_own
    )


def test_only_samples_of_the_policy_are_marked_as_replayed():
    one = made("a", [1.0, 0.0])
    expert = replace(one.samples[0], rollout=replace(one.samples[0].rollout, origin=Origin.EXPERT))
    marked = marked_as_replayed(replace(one, samples=(expert, one.samples[1])))
    assert [item.rollout.origin for item in marked.samples] == [Origin.EXPERT, Origin.REPLAYED]


@pytest.mark.parametrize(
    ("overrides", "complaint"),
    [
        (["algorithm=spear"], "regime=replay keeps none; write regime=reuse"),
        (["algorithm=pipo", "regime=async"], "regime=async keeps none"),
        (
            ["algorithm=spear", "regime=spear", "algorithm.stages.replay.ramp=0"],
            "ramp=0 must be a whole number",
        ),
        (["algorithm=pipo", "regime=pipo", "algorithm.stages.replay.damping=-1"], "damping=-1 must be"),
        (["regime=replay", "regime.reuse_minibatches=after"], "without regime.reuse_share has no effect"),
        (["regime=pipo", "regime.reuse_share=0.1"], "never fill a minibatch of 16"),
        (["regime=pipo", "regime.reuse_minibatches=first"], "write one of mixed, before, after"),
    ],
)
def test_one_mistake_gives_one_complaint_that_names_it(overrides, complaint):
    (text,) = found(*overrides)
    assert complaint in text
