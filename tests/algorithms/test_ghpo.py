from array import array
from dataclasses import replace

import pytest
from tests.algorithms.by_hand import past_group
from tests.algorithms.resuming import PARTIAL, check_resumed_run
from tests.configuration.compositions import found

from bapo_lightning.algorithms.ghpo import Hints
from bapo_lightning.data.rollouts.rules import Rules
from bapo_lightning.system.errors import DataError
from bapo_lightning.types import Problem

HINTS = Hints(max_prompt_tokens=99, template="{problem} so far: {hint}")


def problem(**metadata):
    return Problem("p", "What is {hint}?", "4", metadata=metadata)


def encode(asked):
    return array("i", map(ord, asked.prompt))


def answered(scores, hint=0.0, **metadata):
    return replace(past_group("p", scores), problem=problem(**metadata), hint=hint)


def test_each_hint_shows_more_and_the_last_one_is_the_end():
    shown = []
    hint = 0.0
    while (made := HINTS.retry(answered([0.0, 0.0], hint, solution="abcdefgh"), encode)) is not None:
        hint, prompt = made
        shown.append((hint, "".join(map(chr, prompt))))
    # A placeholder in the problem's own text stays.
    expected = [(0.25, "ab"), (0.5, "abcd"), (0.75, "abcdef")]
    assert shown == [(hint, f"What is {{hint}}? so far: {text}") for hint, text in expected]


def test_there_is_no_hint_for_a_group_with_a_right_answer_or_a_problem_without_a_solution():
    assert HINTS.retry(answered([0.0, 1.0], solution="ab"), encode) is None
    assert HINTS.retry(answered([0.0, 0.0]), encode) is None


def test_there_is_no_hint_that_makes_a_prompt_too_long():
    wrong = answered([0.0], solution="ab" * 40)
    length = len(encode(wrong.problem)) + len(" so far: ") + 20
    assert replace(HINTS, max_prompt_tokens=length - 1).retry(wrong, encode) is None
    assert replace(HINTS, max_prompt_tokens=length).retry(wrong, encode)[0] == 0.25


def test_hints_that_no_problem_has_room_or_a_solution_for_are_refused():
    problems = [problem(), problem(solution="a")]
    Rules({"hints": HINTS}).check(problems, encode)
    with pytest.raises(DataError, match=r"algorithm.rules.hints.max_prompt_tokens=9: no training problem"):
        Rules({"hints": replace(HINTS, max_prompt_tokens=9)}).check(problems, encode)
    with pytest.raises(DataError, match=r"algorithm.rules.hints.column=proof: "):
        Rules({"hints": replace(HINTS, column="proof")}).check(problems, encode)


@pytest.mark.parametrize(("override", "complaint"), [
    ("algorithm.rules.hints.shares=[0.5,0.25]", "each hint shows more"),
    ("algorithm.rules.hints.shares=[]", "must be rising shares of the solution"),
    ("data.hint=abc", "must show {problem} and {hint}"),
])  # fmt: skip
def test_one_mistake_gives_one_complaint_that_names_it(override, complaint):
    (text,) = found("algorithm=ghpo", override)
    assert complaint in text


@pytest.mark.slow
def test_a_run_goes_on_as_if_it_had_never_stopped(tmp_path):
    check_resumed_run(tmp_path, '"hint": 0.5', "algorithm=ghpo", *PARTIAL)
