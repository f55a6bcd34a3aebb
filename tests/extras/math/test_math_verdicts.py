import pytest
from tests.extras.math.verdicts import RIGHT, RIGHT_SENTENCES, WRONG, WRONG_SENTENCES

from bapo_lightning.types import ScoreStatus

CORRECT = ScoreStatus.CORRECT


@pytest.fixture
def reward(make_reward):
    return make_reward()


def judged(reward, pairs, form):
    scores = reward.score_texts([gold for gold, _ in pairs], [form % answer for _, answer in pairs])
    return {pair: score.status for pair, score in zip(pairs, scores, strict=True)}


@pytest.mark.parametrize("rule", RIGHT)
def test_answers_that_are_right(reward, rule):
    statuses = judged(reward, RIGHT[rule], r"\boxed{%s}")
    assert {pair: status for pair, status in statuses.items() if status is not CORRECT} == {}


@pytest.mark.parametrize("rule", WRONG)
def test_answers_that_are_wrong(reward, rule):
    statuses = judged(reward, WRONG[rule], r"\boxed{%s}")
    assert {pair: status for pair, status in statuses.items() if status is not ScoreStatus.WRONG} == {}


def test_a_sentence_is_right_when_it_names_one_value(reward):
    statuses = judged(reward, RIGHT_SENTENCES, "Answer: %s")
    assert {pair: status for pair, status in statuses.items() if status is not CORRECT} == {}


def test_a_sentence_that_names_several_values_or_changes_one_is_wrong(reward):
    statuses = judged(reward, WRONG_SENTENCES, "Answer: %s")
    assert set(statuses.values()) == {ScoreStatus.WRONG}


def test_without_a_mark_the_last_value_of_a_sentence_counts(make_reward):
    everything = make_reward(accept="any")
    pairs = [("5", "the answer is 4 or the answer is 5"), ("5", "the answer is not 5")]
    assert set(judged(everything, pairs, "%s").values()) == {CORRECT}


def test_answers_that_are_not_evaluated_are_right_if_accepted(make_reward, pool, monkeypatch):
    reward = make_reward(unevaluated="accept")
    monkeypatch.setattr(pool, "refuse_unevaluated", False)
    pairs = [
        ("156", r"12\cdot13"), ("42", "84/2"), ("10", r"\binom{5}{2}"), ("1323_4", "123_{10}"), ("5", "6=5"),
    ]  # fmt: skip
    statuses = list(judged(reward, pairs, r"\boxed{%s}").values())
    assert statuses == [CORRECT] * 4 + [ScoreStatus.WRONG]
