"""Token ids of prompts, on the tokenizer of the tiny world: one token per character."""

import inspect
from array import array
from pathlib import Path

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from tokenizers.processors import TemplateProcessing
from transformers import AutoTokenizer, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from bapo_lightning.data.problems.prompts import ChatPrompt, MessagesPrompt, PlainPrompt, contradiction_of
from bapo_lightning.data.problems.selection import keep_short_prompts
from bapo_lightning.data.rollouts.feedback import ChatFeedback
from bapo_lightning.runs.inputs import known, stop_token_ids, within
from bapo_lightning.system.errors import DataError
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


@pytest.mark.parametrize(("prompt", "problem", "expected"), [
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
])  # fmt: skip
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


def with_bos(tokenizer, adds="#"):
    """The tokenizer, which now puts "#" before every text, as Llama 3's and Gemma's put their BOS."""
    tokenizer.bos_token = "#"
    if adds:
        number = tokenizer.convert_tokens_to_ids(adds)
        tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
            single=f"{adds} $A {adds}", special_tokens=[(adds, number)]
        )
    return tokenizer


@pytest.mark.parametrize(("prompt", "adds", "expected"), [
    (PlainPrompt(), "#", "#37+85="),  # what it puts behind the text would end the response
    (PlainPrompt("#1:{problem}"), "#", "#1:37+85="),
    (PlainPrompt(bos=False), "#", "37+85="), (PlainPrompt(bos=True), None, "#37+85="),
    (PlainPrompt(), None, "37+85="), (PlainPrompt(), "0", "37+85="),
    (ChatPrompt(None, "{problem}"), "#", "#0.000;1.37+85=;#"),
    (ChatPrompt(None, "{problem}", "12"), "#", "#0.000;1.37+85=;#12"),
    (MessagesPrompt(), "#", "#0.000;1.37+85=;#"),
])  # fmt: skip
def test_a_prompt_begins_with_bos_where_the_tokenizer_would_and_once(tokenizer, prompt, adds, expected):
    tokenizer.chat_template = "{{ bos_token }}" + TEMPLATE
    assert text(tokenizer, prompt(with_bos(tokenizer, adds), PROBLEM)) == expected


@pytest.mark.parametrize("prompt", [MessagesPrompt(), ChatPrompt(None, "{problem}", "12")])
@pytest.mark.parametrize(("template", "words"), [
    ("{{ raise_exception('no system role') }}", r"\(no system role\)"),
    ("{% for %}", "cannot write the prompt"),
    ("{{ messages[9].content }}", "cannot write the prompt"),
    ("{{ 1 + 'a' }}", "cannot write the prompt"),
    ("{{ messages.__class__.__mro__ }}", "cannot write the prompt"),
])  # fmt: skip
def test_what_a_template_raises_is_reported_with_tokenizer_and_remedy(tokenizer, prompt, template, words):
    tokenizer.chat_template = template
    with pytest.raises(DataError, match=words) as caught:
        prompt(tokenizer, OWN)
    assert "additions/model" in str(caught.value) and "\n" not in str(caught.value)
    remedy = "data/prompt=boxed" if isinstance(prompt, MessagesPrompt) else "data/prompt=plain"
    assert remedy in str(caught.value)


def test_of_several_templates_the_default_one_is_taken_or_one_must_be_named(tokenizer):
    tokenizer.chat_template = {"default": TEMPLATE, "rag": "9"}
    assert text(tokenizer, ChatPrompt(None, "{problem}")(tokenizer, PROBLEM)) == "0.000;1.37+85=;#"
    tokenizer.chat_template = {"rag": "9", "tools": "8"}
    with pytest.raises(DataError, match="several chat templates and no default one"):
        ChatPrompt(None, "{problem}")(tokenizer, PROBLEM)
    named = ChatPrompt(None, "{problem}", template_options={"chat_template": "rag"})
    assert text(tokenizer, named(tokenizer, PROBLEM)) == "9"


@pytest.mark.parametrize("rule", [ChatPrompt, MessagesPrompt, ChatFeedback])
def test_arguments_that_are_no_variables_of_a_template_are_refused(rule):
    variables = {"chat_template", "add_generation_prompt", "tools", "documents", "kwargs", "self"}
    others = set(inspect.signature(PreTrainedTokenizerBase.apply_chat_template).parameters) - variables
    problems = list(rule.problems({"template_options": dict.fromkeys([*others, "enable_thinking"])}))
    assert len(problems) == len(others) and all(any(name in text for name in others) for text in problems)


def test_a_prompt_with_a_token_that_the_model_lacks_is_refused():
    encode = within(lambda problem: array("i", map(int, problem.prompt.split())), 18, "models/mine")
    assert encode(Problem("a", "0 17", "")).tolist() == [0, 17] and not encode(Problem("b", "", ""))
    with pytest.raises(DataError, match=r"problem c has the tokenizer's token 18, .* of 18 tokens"):
        encode(Problem("c", "3 18", ""))


def of_bytes():
    letters = {letter: index for index, letter in enumerate(pre_tokenizers.ByteLevel.alphabet())}
    made = Tokenizer(models.BPE(letters, []))
    made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=made, unk_token="a", eos_token="a")  # GPT-2's is its end


def of_pieces():
    made = Tokenizer(models.Unigram([("<unk>", 0.0), ("\u2581", -1.0), ("1", -1.0), ("+", -1.0)], unk_id=0))
    made.pre_tokenizer = pre_tokenizers.Metaspace()
    return PreTrainedTokenizerFast(tokenizer_object=made, unk_token="<unk>", bos_token="1")


@pytest.mark.parametrize(("made", "stand_in"), [
    (None, "<pad>"), (of_pieces, "<unk>"), (of_bytes, None),
], ids=["words", "pieces", "bytes"])  # fmt: skip
@pytest.mark.parametrize("char", [
    "\U0001f600", "\u0301", "\u200d", "\u4e00", "\u00e9", "\U0001f1e9\U0001f1ea", "\U0001f44d\U0001f3fd",
])  # fmt: skip
def test_characters_that_a_tokenizer_lacks_are_reported_once(made, stand_in, char, tokenizer, capsys):
    tokenizer = made() if made else tokenizer
    encode = known(lambda problem: array("i", tokenizer.encode(problem.prompt)), tokenizer)
    assert [len(encode(Problem(name, "1+1", ""))) >= 3 for name in "ab"] == [True, True]
    assert capsys.readouterr().err == ""
    for name in "cd":
        encode(Problem(name, f"1{char}+1", ""))
    lost = ", ".join(sorted(map(ascii, char)))
    said = f"warning: problem c has {lost}, which the model reads as {stand_in}: its tokenizer has no token"
    printed = capsys.readouterr().err
    assert printed.startswith(f"{said} for") and printed.count("\n") == 1 if stand_in else not printed
    if stand_in is None:
        ids = tokenizer.encode(f"1{char}+1")
        assert tokenizer.decode(ids) == f"1{char}+1"


@pytest.mark.parametrize("file", ["config.json", "generation_config.json"])
def test_a_response_ends_where_transformers_and_the_export_would_end_it(tokenizer, tmp_path, file):
    (tmp_path / "config.json").write_text('{"model_type": "llama", "eos_token_id": [3, 4]}')
    ends = '{"model_type": "llama", "eos_token_id": [5, 3]}'
    (tmp_path / file).write_text(ends)
    assert stop_token_ids(str(tmp_path), tokenizer) == (3, 5, tokenizer.eos_token_id)


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


HASH, BOX = 'Output the final answer after "####".', "Put your final answer within \\boxed{}."


@pytest.mark.parametrize(("in_data", "in_prompt", "named"), [
    (HASH, BOX, ("####", r"\boxed")), (BOX, HASH, (r"\boxed", "####")), (BOX, BOX, None), (HASH, "", None),
    ("", BOX, None),
])  # fmt: skip
def test_a_data_set_and_a_prompt_that_ask_for_two_forms_are_named(in_data, in_prompt, named):
    problems = [Problem(f"p{number}", f"{number}+1? {in_data}", "2") for number in range(3)]
    said = contradiction_of(problems, lambda problem: f"<user>{problem.prompt} {in_prompt}")
    assert (said is None) is (named is None)
    assert said is None or (all(form in said for form in named) and "p0" in said)


def test_one_problem_that_names_a_form_is_no_instruction():
    problems = [Problem(str(number), f"{number}? {HASH * (number == 0)}", "2") for number in range(3)]
    assert contradiction_of(problems, lambda problem: problem.prompt + BOX) is None
