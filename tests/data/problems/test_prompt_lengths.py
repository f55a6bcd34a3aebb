"""Prompts that are kept by the bytes of their texts are those that tokens would keep."""

from array import array
from functools import partial

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from bapo_lightning.data.problems.prompt_lengths import fits_by_bytes, growth_of_bytes, none_fits
from bapo_lightning.data.problems.prompts import ChatOrPlainPrompt, ChatPrompt, MessagesPrompt, PlainPrompt
from bapo_lightning.data.problems.selection import keep_short_prompts
from bapo_lightning.system.errors import DataError
from bapo_lightning.types import Problem

TEMPLATE = (
    "{% for message in messages %}<s>{{ message.role }}:{{ message.content | trim }}{% endfor %}"
    "{% if 'stop' in messages[-1].content %}{{ raise_exception('no') }}{% endif %}a:"
)
NFC = normalizers.Sequence([normalizers.NFC()])
LONG = "\U0001d160" * 4  # four bytes each, and twelve in NFC
TEXTS = [
    "",
    "a",
    "ab" * 9,
    "é" * 5,
    "e\u0301" * 6,
    LONG,
    "<s>" * 7,
    " x" * 8,
    "12 345 ",
    "汉字" * 3,
    "\u0344" * 5,
]


def byte_level(normalizer=None, **options):
    letters = pre_tokenizers.ByteLevel.alphabet()
    vocabulary = {letter: place for place, letter in enumerate(sorted(letters))} | {"ab": 256}
    backend = Tokenizer(models.BPE(vocabulary, [("a", "b")]))
    backend.normalizer = normalizer or backend.normalizer
    level = pre_tokenizers.ByteLevel(**{"add_prefix_space": False} | options)
    backend.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(True), level])
    backend.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, bos_token=AddedToken("<s>", special=True))
    tokenizer.chat_template = TEMPLATE
    return tokenizer


@pytest.mark.parametrize("normalizer", [None, NFC])
@pytest.mark.parametrize("rule", [
    PlainPrompt(), PlainPrompt("{problem}?", bos=True), ChatPrompt("x", "{problem}!"), MessagesPrompt("<s>"),
    ChatOrPlainPrompt(ChatPrompt(None, "{problem}"), PlainPrompt()), lambda _, problem: array("i", [0] * 9),
])  # fmt: skip
def test_bytes_keep_the_problems_that_tokens_keep(rule, normalizer):
    tokenizer = byte_level(normalizer)
    problems = [Problem(f"{number}", text, "") for number, text in enumerate(TEXTS)]
    encode, fits = partial(rule, tokenizer), fits_by_bytes(rule, tokenizer, 258)
    lengths = [len(encode(problem)) for problem in problems]
    for most in sorted({*lengths, max(lengths) + 1, 100}):
        expected = keep_short_prompts(problems, encode, most, "data.train")
        assert keep_short_prompts(problems, encode, most, "data.train", fits) == expected
        is_sure = fits(problems, most)
        assert all(not sure or length <= most for sure, length in zip(is_sure, lengths, strict=True))


def test_prompts_that_fit_are_not_tokenised():
    problems = [Problem(f"{number}", "a" * number, "") for number in range(1, 3000)]
    asked = []

    def encode(problem):
        asked.append(problem)
        return array("i", [1] * len(problem.prompt))

    fits = fits_by_bytes(PlainPrompt(), byte_level(), 258)
    assert keep_short_prompts(problems, encode, 2500, "data.train", fits)[0] == problems[:2500]
    assert asked == problems[2499:]  # a BOS might be one more


def test_a_prompt_that_a_template_refuses_is_named_as_ever():
    problems = [Problem("good", "go", ""), Problem("bad", "stop", "")]
    rule, tokenizer = ChatPrompt(None, "{problem}"), byte_level()
    fits = fits_by_bytes(rule, tokenizer, 258)
    with pytest.raises(DataError, match="cannot write the prompt"):
        keep_short_prompts(problems, partial(rule, tokenizer), 50, "data.train", fits)


def test_nothing_is_known_where_a_byte_may_become_more_tokens():
    assert (growth_of_bytes(byte_level()), growth_of_bytes(byte_level(NFC))) == (1, 3)
    assert growth_of_bytes(byte_level(add_prefix_space=True)) is None
    assert growth_of_bytes(byte_level(normalizers.Prepend("__"))) is None
    words = Tokenizer(models.WordLevel({"a": 0}, "a"))
    assert growth_of_bytes(PreTrainedTokenizerFast(tokenizer_object=words)) is None

    class Spelling(PreTrainedTokenizerFast):
        def _encode_plus(self, *args, **kwargs):
            raise AssertionError

    assert growth_of_bytes(Spelling(tokenizer_object=byte_level().backend_tokenizer)) is None
    assert fits_by_bytes(PlainPrompt(), byte_level(), 257) is none_fits  # the model lacks the last token
