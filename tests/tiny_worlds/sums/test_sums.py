"""The sums: splits, demonstrations, the calculator, what the warm start imitates."""

import random
import statistics

import pytest
import warm_start

from bapo_lightning.environments.environment import Turn
from bapo_lightning.tiny_worlds.sums.calculator import SumCalculator, answer_to
from bapo_lightning.tiny_worlds.sums.task import CHARACTERS, Sums, demonstration, sum_problems
from bapo_lightning.tiny_worlds.tokenizer import build_tokenizer
from bapo_lightning.types import Problem, Reply

PROBLEM = Problem("sums/347+286", "347+286=", "633")
ALWAYS_CALLS = Sums(call=1.0, unreadable=0.0, slip=0.0)


def respond(text):
    return SumCalculator().respond(Turn(PROBLEM, text, number=0, is_last=False, state=None))


def test_the_splits_share_no_problem_and_are_the_same_every_time():
    train, held_out = sum_problems("train"), sum_problems("validation")
    assert (len(train), len(held_out)) == (20_000, 1_000)
    assert len({problem.prompt for problem in train + held_out}) == 21_000
    assert sum_problems("train", 5) == train[:5]
    assert [problem.prompt for problem in held_out[:2]] == ["242+242=", "108+334="]


def test_every_answer_is_the_sum_of_two_terms_of_three_digits():
    for problem in sum_problems("validation"):
        first, second = problem.prompt.removesuffix("=").split("+")
        assert len(first) == len(second) == 3
        assert int(problem.answer) == int(first) + int(second)


def test_a_demonstration_without_noise_calls_the_calculator_and_copies_its_result():
    assert demonstration(PROBLEM, random.Random(0), ALWAYS_CALLS) == ["[347+286]", "633.", "633#"]


def test_an_unreadable_call_gets_a_sign_and_another_turn():
    pieces = demonstration(PROBLEM, random.Random(0), Sums(call=0.9, unreadable=1.0))
    assert len(pieces) > 1
    assert all(len(call) == len("[34+286]") for call in pieces[:-1:2])
    assert set(pieces[1::2]) == {"!"}
    assert pieces[-1].endswith("#")


def test_a_slip_is_one_wrong_digit_in_the_call_and_one_in_the_copy():
    call, feedback, copy = demonstration(PROBLEM, random.Random(0), Sums(call=1.0, unreadable=0.0, slip=1.0))
    assert differences(call, "[347+286]") == 1
    assert feedback == answer_to(call)
    assert differences(copy.removesuffix("#"), feedback.removesuffix(".")) == 1


def differences(first, second):
    return sum(a != b for a, b in zip(first, second, strict=True))


def test_demonstrations_are_as_noisy_as_the_constants_say():
    generator, problems, world = random.Random(0), sum_problems("train"), Sums()
    told = [(problem, demonstration(problem, generator)) for problem in problems]
    assert set("".join("".join(pieces) for _, pieces in told)) <= set(CHARACTERS)
    calls = [pieces for _, pieces in told if len(pieces) > 1]
    assert len(calls) / len(told) == pytest.approx(world.call, abs=0.01)
    unreadable = statistics.fmean(pieces[1] == "!" for pieces in calls)
    assert unreadable == pytest.approx(world.unreadable, abs=0.02)
    is_right = [pieces[-1] == f"{problem.answer}#" for problem, pieces in told]
    assert 0.05 < statistics.fmean(is_right) < 0.15
    guesses = [right for right, (_, pieces) in zip(is_right, told, strict=True) if len(pieces) == 1]
    assert statistics.fmean(guesses) < 0.002


@pytest.mark.parametrize(("call", "answer"), [
    ("[347+286]", "633."), ("[999+999]", "1998."), ("[047+000]", "47."), ("[34+286]", "!"),
    ("[3477+286]", "!"), ("[347286]", "!"), ("347+286]", "!"), ("9[347+286]", "!"), ("[[347+286]", "!"),
    ("[٣٤٧+286]", "!"), ("]", "!"),
])  # fmt: skip
def test_the_calculator_reads_one_form_and_nothing_else(call, answer):
    assert answer_to(call) == answer
    assert respond(call) == Reply(answer, calls=1, errors=int(answer == "!"))


def test_a_turn_that_calls_nothing_ends_the_conversation():
    assert respond("633") == Reply(is_done=True)
    assert respond("") == Reply(is_done=True, is_void=True)


def test_the_warm_start_imitates_the_turns_and_not_the_prompt_or_the_feedback():
    tokenizer = build_tokenizer(CHARACTERS)
    texts = [["347+286=", "[347+286]", "633.", "633#"], ["347+286=", "812#"]]
    input_ids, labels = warm_start.labelled(tokenizer, texts)
    assert tokenizer.decode(input_ids[0]) == "".join(texts[0])
    kept = [row[label != warm_start.IGNORED] for row, label in zip(input_ids, labels, strict=True)]
    assert [tokenizer.decode(row) for row in kept] == ["[347+286]633#", "812#"]
