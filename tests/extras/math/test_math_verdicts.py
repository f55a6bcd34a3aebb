import pytest
from tests.extras.math.verdicts import RIGHT, RIGHT_SENTENCES, WRONG, WRONG_SENTENCES

from bapo_lightning.types import ScoreStatus

CORRECT = ScoreStatus.CORRECT


def judged(reward, pairs, form):
    scores = reward.score_texts([gold for gold, _ in pairs], [form % answer for _, answer in pairs])
    return {pair: score.status for pair, score in zip(pairs, scores, strict=True)}


CASES = {
    **{f"right, {rule}": (pairs, r"\boxed{%s}", CORRECT) for rule, pairs in RIGHT.items()},
    **{f"wrong, {rule}": (pairs, r"\boxed{%s}", ScoreStatus.WRONG) for rule, pairs in WRONG.items()},
    "right, a sentence names one value": (RIGHT_SENTENCES, "Answer: %s", CORRECT),
    "wrong, it names several or changes one": (WRONG_SENTENCES, "Answer: %s", ScoreStatus.WRONG),
}


@pytest.mark.parametrize("case", CASES)
def test_answers_have_their_verdicts(make_reward, case):
    pairs, form, expected = CASES[case]
    statuses = judged(make_reward(), pairs, form)
    assert {pair: status for pair, status in statuses.items() if status is not expected} == {}


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
