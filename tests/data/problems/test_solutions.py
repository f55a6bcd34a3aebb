"""What the metadata says of a solution: an expert's answers, and hints."""

from array import array
from dataclasses import replace
from types import SimpleNamespace

import pytest
from tests.builders import group, rollout
from tests.configuration.compositions import found

from bapo_lightning.algorithms.ghpo import Hints
from bapo_lightning.algorithms.luffy import ExpertTraces
from bapo_lightning.data.problems.solutions import solutions
from bapo_lightning.data.rollouts.rules import Rules
from bapo_lightning.errors import DataError
from bapo_lightning.types import NO_VERSION, FinishReason, Origin, Problem, Rollout

TOKENIZER = SimpleNamespace(encode=lambda text, add_special_tokens: [*map(ord, text)], eos_token_id=9)
HINTS = Hints(max_prompt_tokens=99, template="{problem} so far: {hint}")


def problem(**metadata):
    return Problem("p", "What is {hint}?", "4", metadata=metadata)


def encode(asked):
    return array("i", map(ord, asked.prompt))


def answered(scores, hint=0.0, **metadata):
    made = group("p", [rollout([1], [2], [-1.0])] * len(scores), scores)
    return replace(made, problem=problem(**metadata), hint=hint)


@pytest.mark.parametrize(
    ("cell", "texts"), [("ab", ["ab"]), (["ab", "", "c"], ["ab", "c"]), ("", []), (None, []), (7, [])]
)
def test_a_solution_is_a_text_or_a_list_of_texts(cell, texts):
    assert solutions(problem(solution=cell), "solution") == texts


def test_an_experts_answer_ends_like_the_policys_has_no_version_and_log_probs_of_zero():
    start = Rollout(array("i", [5]))
    (made,) = ExpertTraces(count=1).open(TOKENIZER, problem(solution=["ab", "c"]), start)
    assert (made.prompt_ids, list(made.response_ids)) == (start.prompt_ids, [97, 98, 9])
    assert (made.finish, made.origin, list(made.logprobs)) == (FinishReason.STOP, Origin.EXPERT, [0.0] * 3)
    assert list(made.versions) == [NO_VERSION] * 3 and not made.aging_segments and not made.is_sampled
    assert len(ExpertTraces(count=3).open(TOKENIZER, problem(solution=["ab", "c"]), start)) == 2
    assert ExpertTraces().open(TOKENIZER, problem(), start) == []


def test_each_hint_shows_more_and_the_last_one_is_the_end():
    shown = []
    hint = 0.0
    while (made := HINTS.again(answered([0.0, 0.0], hint, solution="abcdefgh"), encode)) is not None:
        hint, prompt = made
        shown.append((hint, "".join(map(chr, prompt))))
    # A placeholder in the problem's own text stays.
    assert shown == [
        (0.25, "What is {hint}? so far: ab"),
        (0.5, "What is {hint}? so far: abcd"),
        (0.75, "What is {hint}? so far: abcdef"),
    ]


def test_there_is_no_hint_for_a_group_with_a_right_answer_or_a_problem_without_a_solution():
    assert HINTS.again(answered([0.0, 1.0], solution="ab"), encode) is None
    assert HINTS.again(answered([0.0, 0.0]), encode) is None


def test_there_is_no_hint_that_makes_a_prompt_too_long():
    wrong = answered([0.0], solution="ab" * 40)
    length = len(encode(wrong.problem)) + len(" so far: ") + 20
    assert replace(HINTS, max_prompt_tokens=length - 1).again(wrong, encode) is None
    assert replace(HINTS, max_prompt_tokens=length).again(wrong, encode)[0] == 0.25


def test_rules_that_no_problem_has_a_solution_for_are_refused():
    problems = [problem(), problem(solution="a")]
    Rules({"experts": ExpertTraces(), "hints": HINTS}).check(problems, encode)
    complaint = r"algorithm.rules.experts.column=proof: .*data.train.mapping.keep=\[proof\]"
    with pytest.raises(DataError, match=complaint):
        Rules({"experts": ExpertTraces("proof")}).check(problems, encode)
    with pytest.raises(DataError, match=r"algorithm.rules.hints.max_prompt_tokens=9: no training problem"):
        Rules({"hints": replace(HINTS, max_prompt_tokens=9)}).check(problems, encode)


@pytest.mark.parametrize(
    ("overrides", "complaint"),
    [
        (["algorithm=luffy", "algorithm.rules.experts.count=8"], "write algorithm.rules.experts.count=1"),
        (
            ["algorithm=luffy", "algorithm.rules.experts.count=0"],
            "count=0 must be a whole number",
        ),
        (
            ["algorithm=luffy", "algorithm.objective.gamma=0"],
            "gamma=0 must be a positive",
        ),
        (["algorithm=ghpo", "algorithm.rules.hints.shares=[0.5,0.25]"], "each hint shows more"),
        (["algorithm=ghpo", "algorithm.rules.hints.shares=[]"], "must be rising shares of the solution"),
        (["algorithm=ghpo", "data.hint=abc"], "must show {problem} and {hint}"),
    ],
)
def test_one_mistake_gives_one_complaint_that_names_it(overrides, complaint):
    (text,) = found(*overrides)
    assert complaint in text
