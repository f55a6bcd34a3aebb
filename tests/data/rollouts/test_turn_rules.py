"""What is added to a reward for turns, and which samples are trained on, by hand."""

from array import array
from dataclasses import replace

import pytest
import torch
from tests.data.rollouts.scripted import STOPPED, ruled, segment
from tests.data.rollouts.test_sampler import ITEMS, finished, made
from tests.data.rollouts.turns import ANSWER, CALL, FAILED, VOID, sample, talk

from bapo_lightning.data.rollouts.observer import RolloutStatistics
from bapo_lightning.data.rollouts.rules import Rules
from bapo_lightning.data.rollouts.shaping import OverlongPenalty
from bapo_lightning.data.rollouts.turn_rules import SampleFilter, TurnFormatReward, most_repeated
from bapo_lightning.objectives.advantages.group import group_advantages
from bapo_lightning.types import FinishReason, Rollout, ScoreStatus


@pytest.mark.parametrize(("rollout", "kept"), [
    (talk(CALL, ANSWER), True), (talk(ANSWER), True), (talk(FAILED, ANSWER), False),
    (talk(CALL, VOID), False),
    (talk(CALL, ANSWER, finish=FinishReason.LENGTH), False),  # a limit of turns
    (talk(CALL, finish=FinishReason.LENGTH, cut_off=True), False),
])  # fmt: skip
def test_a_bonus_for_the_format_is_added_and_a_malus_for_its_lack(rollout, kept):
    assert TurnFormatReward(0.2).shape(rollout, 3) == (0.2 if kept else 0.0)
    assert TurnFormatReward(-0.2).shape(rollout, 3) == (0.0 if kept else -0.2)


def test_samples_with_a_void_turn_are_left_out():
    rule = SampleFilter(void_turns=True)
    assert rule.keeps(sample(talk(CALL, ANSWER))) and rule.keeps(sample(talk(FAILED, ANSWER)))
    assert not rule.keeps(sample(talk(CALL, VOID))) and not rule.keeps(sample(talk(VOID, ANSWER)))
    # The last turn that is allowed called a tool: no answer, but not void either.
    unanswered = ScoreStatus.UNPARSABLE
    assert rule.keeps(sample(talk(CALL, CALL, finish=FinishReason.LENGTH), unanswered))
    within = talk(CALL, finish=FinishReason.LENGTH, cut_off=True)
    assert not rule.keeps(sample(within, unanswered)) and rule.keeps(sample(within))
    assert rule.keeps(sample(talk(), unanswered))  # an expert's answer, which nobody replied to


def test_samples_without_an_answer_cut_or_repeating_themselves_are_left_out():
    unparsable, cut = sample(talk(ANSWER), ScoreStatus.UNPARSABLE), talk(CALL, finish=FinishReason.LENGTH)
    assert not SampleFilter(unanswered=True).keeps(unparsable) and SampleFilter(cut=True).keeps(unparsable)
    assert not SampleFilter(cut=True).keeps(sample(cut)) and SampleFilter(unanswered=True).keeps(sample(cut))
    babble = sample(talk(CALL, ANSWER, tokens=(5, 6, 5, 6, 5)))  # in each turn 5 6 and 6 5 twice
    for ngram, copies in ((2, 4), (4, 2)):
        assert SampleFilter(repeats=copies + 1, ngram=ngram).keeps(babble)
        assert not SampleFilter(repeats=copies, ngram=ngram).keeps(babble)


def test_repeats_are_those_of_a_plain_count_and_never_reach_over_two_turns():
    generator = torch.Generator().manual_seed(0)
    for ngram in (1, 2, 3):
        drawn = [torch.randint(-1, 2, (length,), generator=generator) for length in (0, 1, 7, 30)]
        turns = [array("i", turn.tolist()) for turn in drawn]
        every = [tuple(turn[at : at + ngram]) for turn in turns for at in range(len(turn) - ngram + 1)]
        assert most_repeated(turns, ngram) == max(map(every.count, every))
    assert most_repeated([array("i", [1]), array("i", [2])], 2) == 0
    assert most_repeated([array("i", [256, 1, 256])], 1) == 2  # tokens, not bytes


def test_rules_change_rewards_and_leave_out_tokens_but_not_the_baseline():
    longer = lambda rollout, version: 0.1 * version * rollout.length  # noqa: E731
    rules = ruled(shape=longer, keeps=lambda sample: sample.reward > 0.5)
    source = made(advantages=lambda rewards: rewards - rewards.mean(1, True), rules=rules)
    groups = finished(source.start(ITEMS, 2), 2, 3, 1, 4)
    first, second = source.score(groups, version=2)
    assert (first.item, second.item, first.ready_version) == (*ITEMS, 2)
    assert [sample.text for sample in first.samples] == ["0 1", "0 1 2"]
    assert first.rewards == pytest.approx((1.4, 0.6)) and second.rewards == pytest.approx((0.2, 1.8))
    assert [sample.is_trained for sample in (*first.samples, *second.samples)] == [True, True, False, True]
    assert second.advantages == pytest.approx((-0.8, 0.8)) and second.trained_samples == second.samples[1:]
    statistics = RolloutStatistics()
    statistics.count_groups([first, second])
    assert statistics.metrics()["rollout/filtered_samples"] == 1
    # Held-out answers are scored without rules, and a group that nothing is left of has no advantages.
    answers = source.judge([ITEMS[0].problem] * 2, groups[0].rollouts)
    assert [answer.reward for answer in answers] == [1.0, 0.0]
    for group in replace(source, rules=ruled(keeps=lambda sample: False)).score(groups, 2):
        assert group.advantages == (0.0, 0.0) and group.trained_samples == group.samples


def test_ages_are_those_of_the_samples_that_are_trained_on():
    source = made(rules=ruled(keeps=lambda sample: sample.rollout.length > 2))
    (group,) = groups = source.start(ITEMS[:1], 2)
    for index, (length, version) in enumerate([(2, 7), (3, 4)]):
        group.rollouts[index] = group.rollouts[index].extended(segment(length, version), STOPPED, 6)
    for rules, versions in ((source.rules, (4, 4)), (Rules(), (4, 7))):
        (scored,) = replace(source, rules=rules).score(groups, 8)
        assert (scored.oldest_version, scored.newest_version) == versions


def shaped(penalty, length):
    return penalty.shape(Rollout(array("i", [1]), (segment(length),)), version=0)


def test_the_overlong_penalty_is_a_ramp_before_the_limit():
    penalty = OverlongPenalty(limit=48, buffer=12, factor=1.0)
    assert [shaped(penalty, length) for length in (1, 36, 39, 42, 48)] == [0.0, 0.0, -0.25, -0.5, -1.0]
    assert shaped(OverlongPenalty(limit=10, buffer=10, factor=2.0), 5) == -1.0


def test_by_default_it_is_as_strong_as_dapos_next_to_rewards_that_are_one_apart():
    ours, dapos = OverlongPenalty(limit=48, buffer=12), OverlongPenalty(limit=48, buffer=12, factor=1.0)
    rewards = torch.tensor([[1.0, 0.0, 0.0, 1.0]])
    lengths = (40, 48, 20, 10)
    zero_or_one = rewards + torch.tensor([shaped(ours, length) for length in lengths])
    plus_or_minus_one = 2 * rewards - 1 + torch.tensor([shaped(dapos, length) for length in lengths])
    torch.testing.assert_close(group_advantages(zero_or_one), group_advantages(plus_or_minus_one))


def test_a_buffer_beyond_the_limit_is_refused():
    with pytest.raises(ValueError, match=r"must be in 1..limit \(10\), got 11"):
        OverlongPenalty(limit=10, buffer=11)
