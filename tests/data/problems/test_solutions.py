"""What the metadata says of a solution: an expert's answers, and hints."""

from array import array
from dataclasses import replace
from types import SimpleNamespace

import pytest
from tests.builders import group, rollout
from tests.configuration.compositions import found

from bapo_lightning.data.problems.solutions import ExpertTraces, Hints, require_solutions, solutions
from bapo_lightning.errors import DataError
from bapo_lightning.types import NO_VERSION, FinishReason, Origin, Problem, Rollout

TOKENIZER = SimpleNamespace(encode=lambda text, add_special_tokens: [*map(ord, text)], eos_token_id=9)
HINTS = Hints(max_prompt_tokens=99, template="{problem} so far: {hint}")


def problem(**metadata):
    return Problem("p", "What is {hint}?", "4", metadata=metadata)


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
    (made,) = ExpertTraces(count=1)(TOKENIZER, problem(solution=["ab", "c"]), start)
    assert (made.prompt_ids, list(made.response_ids)) == (start.prompt_ids, [97, 98, 9])
    assert (made.finish, made.origin, list(made.logprobs)) == (FinishReason.STOP, Origin.EXPERT, [0.0] * 3)
    assert list(made.versions) == [NO_VERSION] * 3 and not made.aging_segments and not made.is_sampled
    assert len(ExpertTraces(count=3)(TOKENIZER, problem(solution=["ab", "c"]), start)) == 2
    assert ExpertTraces()(TOKENIZER, problem(), start) == []


def test_each_hint_shows_more_and_the_last_one_is_the_end():
    shown = []
    hint = 0.0
    while (made := HINTS(answered([0.0, 0.0], hint, solution="abcdefgh"))) is not None:
        hint, hinted = made
        shown.append((hint, hinted.prompt))
        assert (hinted.id, hinted.answer) == ("p", "4")
    # A placeholder in the problem's own text stays.
    assert shown == [
        (0.25, "What is {hint}? so far: ab"),
        (0.5, "What is {hint}? so far: abcd"),
        (0.75, "What is {hint}? so far: abcdef"),
    ]


def test_there_is_no_hint_for_a_group_with_a_right_answer_or_a_problem_without_a_solution():
    assert HINTS(answered([0.0, 1.0], solution="ab")) is None
    assert HINTS(answered([0.0, 0.0])) is None


def test_a_column_that_no_problem_has_is_refused():
    require_solutions([problem(), problem(solution="a")], "solution", "algorithm.hints.column")
    with pytest.raises(DataError, match=r"algorithm.hints.column=proof: .*data.train.mapping.keep=\[proof\]"):
        require_solutions([problem(solution="a")], "proof", "algorithm.hints.column")


@pytest.mark.parametrize(
    ("overrides", "complaint"),
    [
        (["algorithm=luffy", "algorithm.experts.count=8"], "write algorithm.experts.count=1"),
        (
            ["algorithm=luffy", "algorithm.experts.count=0"],
            "count=0 must be a whole number",
        ),
        (
            ["algorithm=luffy", "algorithm.objective.gamma=0"],
            "gamma=0 must be a positive",
        ),
        (["algorithm=ghpo", "algorithm.hints.shares=[0.5,0.25]"], "each hint shows more"),
        (["algorithm=ghpo", "algorithm.hints.shares=[]"], "must be rising shares of the solution"),
        (["algorithm=ghpo", "data.hint=abc"], "must show {problem} and {hint}"),
    ],
)
def test_one_mistake_gives_one_complaint_that_names_it(overrides, complaint):
    (text,) = found(*overrides)
    assert complaint in text
