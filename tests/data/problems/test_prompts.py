"""Token ids of prompts, on the tokenizer of the tiny world: one token per character."""

from __future__ import annotations

from array import array
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from bapo_lightning.data.problems.prompts import ChatPrompt, MessagesPrompt, PlainPrompt
from bapo_lightning.data.problems.selection import keep_short_prompts
from bapo_lightning.errors import DataError
from bapo_lightning.tiny_worlds.additions.task import addition_problems
from bapo_lightning.types import Problem

MODEL = Path(__file__).resolve().parents[3] / "src/bapo_lightning/tiny_worlds/additions/model"
PROBLEM = Problem("a", "37+85=", "122")
# Characters that the tiny tokenizer knows: a message is "role.content;", the assistant's turn opens with "#".
TEMPLATE = (
    "{% if messages[0].role != 'system' %}0.000;{% endif %}{% for message in messages %}{{ "
    "{'system': '0', 'user': '1'}[message.role] }}.{{ message.content }};{% endfor %}{% if "
    "add_generation_prompt %}#{% endif %}"
)


@pytest.fixture
def tokenizer():
    return AutoTokenizer.from_pretrained(MODEL)


def text(tokenizer, ids: array) -> str:
    return "".join(tokenizer.convert_ids_to_tokens(ids.tolist()))


def test_a_plain_prompt_is_the_problems_text(tokenizer) -> None:
    ids = PlainPrompt()(tokenizer, PROBLEM)
    assert (ids.typecode, len(ids), text(tokenizer, ids)) == ("i", 6, "37+85=")


@pytest.mark.parametrize(
    ("system", "template", "expected"),
    [
        (None, "{problem}", "0.000;1.37+85=;#"),
        ("99", "{problem}", "0.99;1.37+85=;#"),
        ("", "{problem}", "0.;1.37+85=;#"),
        (None, "1+{problem}2:{problem}", "0.000;1.1+37+85=2:37+85=;#"),
    ],
)
def test_a_chat_prompt_is_rendered_up_to_the_assistants_turn(tokenizer, system, template, expected) -> None:
    tokenizer.chat_template = TEMPLATE
    ids = ChatPrompt(system, template)(tokenizer, PROBLEM)
    assert (ids.typecode, text(tokenizer, ids)) == ("i", expected)


def test_braces_in_a_problem_and_in_the_template_stand_for_themselves(tokenizer) -> None:
    tokenizer.chat_template = "{% for message in messages %}{{ message.content | length }}{% endfor %}"
    ids = ChatPrompt(None, "{problem} in \\boxed{}")(tokenizer, Problem("a", "{x} {0} {problem}", ""))
    assert text(tokenizer, ids) == str(len("{x} {0} {problem} in \\boxed{}"))


@pytest.mark.parametrize(("opening", "expected"), [("#", "0.000;1.37+85=;#"), ("12", "0.000;1.37+85=;#12")])
def test_an_opening_is_written_once_whether_or_not_the_tokenizers_template_has_it(
    tokenizer, opening, expected
) -> None:
    tokenizer.chat_template = TEMPLATE
    assert text(tokenizer, ChatPrompt(None, "{problem}", opening)(tokenizer, PROBLEM)) == expected


def test_options_reach_the_tokenizers_template(tokenizer) -> None:
    tokenizer.chat_template = "{% if brief %}1{% else %}0{% endif %}"
    assert (
        text(tokenizer, ChatPrompt(None, "{problem}", template_options={"brief": True})(tokenizer, PROBLEM))
        == "1"
    )


def test_messages_of_the_file_are_rendered_as_they_stand(tokenizer) -> None:
    tokenizer.chat_template = TEMPLATE
    messages = [{"role": "system", "content": "9"}, {"role": "user", "content": "37+85="}]
    own = Problem("a", "37+85=", "122", metadata={"messages": messages})
    assert text(tokenizer, MessagesPrompt()(tokenizer, own)) == "0.9;1.37+85=;#"
    assert text(tokenizer, MessagesPrompt()(tokenizer, PROBLEM)) == "0.000;1.37+85=;#"
    assert text(tokenizer, ChatPrompt("8", "{problem}")(tokenizer, own)) == "0.8;1.37+85=;#"


def test_a_plain_prompt_may_have_a_template(tokenizer) -> None:
    assert text(tokenizer, PlainPrompt("1:{problem}#")(tokenizer, PROBLEM)) == "1:37+85=#"


@pytest.mark.parametrize("prompt", [PlainPrompt, ChatPrompt])
def test_a_template_without_the_problem_is_refused(prompt) -> None:
    (text,) = prompt.problems({"template": "Solve this"})
    assert text.startswith("template='Solve this' never shows the problem; write {problem}")
    assert list(prompt.problems({"template": "Solve {problem}"})) == list(prompt.problems({})) == []


def test_a_tokenizer_without_a_chat_template_is_an_error_that_names_the_fix(tokenizer) -> None:
    with pytest.raises(
        DataError,
        match=r"data.prompt=ChatPrompt needs a chat template.*data/prompt=plain",
    ):
        ChatPrompt(None, "{problem}")(tokenizer, PROBLEM)


def test_long_prompts_are_skipped_and_counted_in_order() -> None:
    problems = [Problem(str(index), "1" * length, "") for index, length in enumerate([3, 9, 4, 5, 8])]

    def encode(problem: Problem) -> array:
        return array("i", range(len(problem.prompt)))

    kept, skipped = keep_short_prompts(problems, encode, 5, "data.train")
    assert ([problem.id for problem in kept], [problem.id for problem in skipped]) == (
        ["0", "2", "3"],
        ["1", "4"],
    )
    assert keep_short_prompts(problems, encode, 9, "data.train") == (problems, [])
    with pytest.raises(
        DataError,
        match=r"none of the 5 problems of data.train fits scale.max_prompt_tokens=2: the shortest .* has 3 "
        r"tokens",
    ):
        keep_short_prompts(problems, encode, 2, "data.train")
    with pytest.raises(DataError, match=r"data\.validation holds no problems"):
        keep_short_prompts([], encode, 2, "data.validation")


@pytest.mark.parametrize("split", ["train", "validation"])
def test_every_problem_of_the_tiny_world_fits_its_scale(tokenizer, split) -> None:
    problems = addition_problems(split)
    assert keep_short_prompts(problems, lambda problem: PlainPrompt()(tokenizer, problem), 8, split) == (
        problems,
        [],
    )
