"""Token ids of prompts, on the tokenizer of the tiny world: one token per character."""

from array import array
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from bapo_lightning.data.problems.prompts import ChatPrompt, MessagesPrompt, PlainPrompt
from bapo_lightning.data.problems.selection import keep_short_prompts
from bapo_lightning.errors import DataError
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


def text(tokenizer, ids):
    return "".join(tokenizer.convert_ids_to_tokens(ids.tolist()))


MESSAGES = [{"role": "system", "content": "9"}, {"role": "user", "content": "37+85="}]
OWN = Problem("a", "37+85=", "122", metadata={"messages": MESSAGES})


@pytest.mark.parametrize(
    ("prompt", "problem", "expected"),
    [
        (PlainPrompt(), PROBLEM, "37+85="),
        (PlainPrompt("1:{problem}#"), PROBLEM, "1:37+85=#"),
        (ChatPrompt(None, "{problem}"), PROBLEM, "0.000;1.37+85=;#"),
        (ChatPrompt("99", "{problem}"), PROBLEM, "0.99;1.37+85=;#"),
        (ChatPrompt("", "{problem}"), PROBLEM, "0.;1.37+85=;#"),
        (ChatPrompt(None, "1+{problem}2:{problem}"), PROBLEM, "0.000;1.1+37+85=2:37+85=;#"),
        (ChatPrompt(None, "{problem}", "#"), PROBLEM, "0.000;1.37+85=;#"),  # an opening is written once
        (ChatPrompt(None, "{problem}", "12"), PROBLEM, "0.000;1.37+85=;#12"),
        (ChatPrompt(None, "{problem}", template_options={"brief": True}), PROBLEM, "8"),
        (MessagesPrompt(), OWN, "0.9;1.37+85=;#"),  # of the file, as they stand
        (MessagesPrompt(), PROBLEM, "0.000;1.37+85=;#"),
        (ChatPrompt("8", "{problem}"), OWN, "0.8;1.37+85=;#"),
    ],
)
def test_a_prompt_is_rendered_up_to_where_the_policy_goes_on(tokenizer, prompt, problem, expected):
    tokenizer.chat_template = "{% if brief %}8{% else %}" + TEMPLATE + "{% endif %}"
    ids = prompt(tokenizer, problem)
    assert (ids.typecode, text(tokenizer, ids)) == ("i", expected)


def test_braces_in_a_problem_and_in_the_template_stand_for_themselves(tokenizer):
    tokenizer.chat_template = "{% for message in messages %}{{ message.content | length }}{% endfor %}"
    ids = ChatPrompt(None, "{problem} in \\boxed{}")(tokenizer, Problem("a", "{x} {0} {problem}", ""))
    assert text(tokenizer, ids) == str(len("{x} {0} {problem} in \\boxed{}"))


@pytest.mark.parametrize("prompt", [PlainPrompt, ChatPrompt])
def test_a_template_without_the_problem_is_refused(prompt):
    (text,) = prompt.problems({"template": "Solve this"})
    assert text.startswith("template='Solve this' never shows the problem; write {problem}")
    assert list(prompt.problems({"template": "Solve {problem}"})) == list(prompt.problems({})) == []


def test_a_tokenizer_without_a_chat_template_is_an_error_that_names_the_fix(tokenizer):
    with pytest.raises(DataError, match=r"data.prompt=ChatPrompt needs a chat template.*data/prompt=plain"):
        ChatPrompt(None, "{problem}")(tokenizer, PROBLEM)


def test_long_prompts_are_skipped_and_counted_in_order():
    problems = [Problem(str(index), "1" * length, "") for index, length in enumerate([3, 9, 4, 5, 8])]

    def encode(problem):
        return array("i", range(len(problem.prompt)))

    kept, skipped = keep_short_prompts(problems, encode, 5, "data.train")
    assert [[problem.id for problem in part] for part in (kept, skipped)] == [["0", "2", "3"], ["1", "4"]]
    assert keep_short_prompts(problems, encode, 9, "data.train") == (problems, [])
    words = r"none of the 5 problems of data.train fits scale.max_prompt_tokens=2: the shortest .* 3 tokens"
    with pytest.raises(DataError, match=words):
        keep_short_prompts(problems, encode, 2, "data.train")
    with pytest.raises(DataError, match=r"data\.validation holds no problems"):
        keep_short_prompts([], encode, 2, "data.validation")
