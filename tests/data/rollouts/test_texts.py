"""Texts of tokens: only end tokens and padding vanish from what rewards, tools and records read."""

import random
from array import array
from dataclasses import replace

import pytest
from tests.data.rollouts.scripted import NumberTokenizer, ScriptedEngine, sampler
from tests.data.rollouts.turns import talking
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from bapo_lightning.data.problems.prompts import decoded
from bapo_lightning.environments.call_formats import JsonCalls
from bapo_lightning.rewards.format_reward import is_think_answer
from bapo_lightning.system.pretrained import read_pretrained
from bapo_lightning.types import FinishReason, Problem, Reply, Rollout, Score, ScoreStatus, Segment

SPECIAL = ("<|eot|>", "<think>", "</think>", "<answer>", "</answer>", "<tool_call>", "</tool_call>", "<|x|>")


class InPython(PreTrainedTokenizerFast):
    """A fast tokenizer whose texts are made in Python."""

    def _decode(self, token_ids, **options):
        return super()._decode(token_ids, **options)


class Counting(PreTrainedTokenizerFast):
    """A fast tokenizer whose texts are made in Python."""

    def _decode(self, token_ids, **options):
        return f"{len(token_ids)} tokens"


def byte_level(kind=PreTrainedTokenizerFast, **options):
    """A tokenizer whose tokens are bytes, parts of a character among them, and special tokens."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    rust = Tokenizer(models.BPE({letter: number for number, letter in enumerate(alphabet)}, []))
    rust.pre_tokenizer, rust.decoder = pre_tokenizers.ByteLevel(False), decoders.ByteLevel()
    made = kind(tokenizer_object=rust, eos_token="<end>", pad_token="<pad>", **options)
    made.add_tokens([AddedToken(text, special=True) for text in SPECIAL])
    made.add_tokens(["<plain>"])
    return made


KINDS = pytest.mark.parametrize("made", [
    byte_level(), byte_level(clean_up_tokenization_spaces=True), byte_level(InPython),
], ids=["fast", "cleaning", "own"])  # fmt: skip


def encoded(tokenizer, text):
    return array("i", tokenizer.encode(text, add_special_tokens=False))


def spoken(tokenizer, prompt, *turns, reply="<think>"):
    """A rollout of turns that end with the end token, with replies between them."""
    segments = []
    for number, turn in enumerate(turns):
        ids = encoded(tokenizer, turn + "<end>")
        segments += [Segment.of_feedback(encoded(tokenizer, reply))] if number else []
        segments += [Segment(ids, array("f", [-1.0] * len(ids)), 0)]
    replies = tuple(Reply(reply) for _ in turns)
    return Rollout(encoded(tokenizer, prompt), tuple(segments), FinishReason.STOP, replies=replies)


def judging(tokenizer, ends=()):
    """A sampler of this tokenizer, and the completions that its reward gets."""
    seen = []

    def reward(problems, completions):
        seen.extend(completions)
        return [Score(0.0, ScoreStatus.WRONG) for _ in completions]

    source = sampler(ScriptedEngine(9), max_new_tokens=99, max_restarts=0)
    return replace(source, tokenizer=tokenizer, reward=reward, ends=ends), seen


@KINDS
@pytest.mark.parametrize("text", [
    *(f"a {token} b" for token in (*SPECIAL[1:], "<plain>")), "a b", "\u00e9 \U0001f600",
])  # fmt: skip
def test_only_end_tokens_and_padding_vanish(made, text):
    eot = made.convert_tokens_to_ids("<|eot|>")
    row = encoded(made, f"<pad>{text}<|eot|><end><pad>")
    assert decoded(made, [row], (eot,)) == [made.decode(encoded(made, text), skip_special_tokens=False)]
    assert decoded(made, [row]) == [made.decode(encoded(made, text + "<|eot|>"), skip_special_tokens=False)]
    plain = made.convert_tokens_to_ids("<plain>")  # an end that is no special token was text, and stays text
    assert "<plain>" in decoded(made, [encoded(made, "7<plain>")], (plain,))[0]


@KINDS
def test_formats_and_calls_of_special_tokens_are_read_by_rewards_and_environments(made):
    source, seen = judging(made)
    answer = "<think>2 + 3</think> <answer>5</answer>"
    call = '<tool_call>{"name": "python", "arguments": {"code": "1"}}</tool_call>'
    texts = []

    class Asked:
        is_pure = True

        def start(self, problem):
            return None

        def respond(self, turn):
            texts.append(turn.text)
            return Reply("", is_done=True)

    talks = talking(source, Asked(), tokenizer=made).conversations
    problem = Problem("p", "", "")
    for text in (answer, call):
        rollout = spoken(made, "", text)
        source.judge([problem], [rollout])
        talks._reply(problem, replace(rollout, replies=()))
    assert [completion.text for completion in seen] == texts == [answer, call]
    assert is_think_answer(texts[0]) and [one.argument for one in JsonCalls().find(texts[1])] == ["1"]


@pytest.mark.parametrize(("prompt", "turns", "is_thought"), [
    ("2+3=?<think>\n", ["a</think>5"], True), ("2+3=?<think>", ["a</think>5"], True),
    ("2+3=?<think></think>", ["5"], False), ("<think>" + "2+3=? " * 9, ["5"], False), ("", ["5"], False),
    ("2+3=?", ["1", "5"], True),  # the last turn's, which a reply's template opened
])  # fmt: skip
def test_a_thought_that_prompt_or_reply_opened_is_the_responses(prompt, turns, is_thought):
    made = byte_level()
    source, seen = judging(made)
    source = talking(source, None, tokenizer=made) if len(turns) > 1 else source
    source.judge([Problem("p", "", "")], [spoken(made, prompt, *turns)])
    assert (seen[0].text, seen[0].is_thought) == (turns[-1], is_thought)


@pytest.mark.parametrize("tokenizer", [
    byte_level(), byte_level(clean_up_tokenization_spaces=True), byte_level(Counting), NumberTokenizer(),
], ids=["fast", "cleaning", "own", "slow"])  # fmt: skip
def test_texts_of_many_responses_are_those_of_one_at_a_time(tokenizer):
    generator = random.Random(3)
    lengths = (40, 0, 1, 300, 7) * 20
    rows = [array("i", [generator.randrange(258) for _ in range(length)]) for length in lengths]
    alone = [tokenizer.decode(row.tolist(), skip_special_tokens=True) for row in rows]
    assert decoded(tokenizer, rows) == alone and decoded(tokenizer, []) == []
    assert len(set(alone)) > 3 and not any("<end>" in text for text in alone)


def test_a_fast_tokenizer_makes_all_texts_in_one_call(monkeypatch):
    tokenizer = byte_level()
    monkeypatch.setattr(PreTrainedTokenizerFast, "_decode", None)  # as `decode` calls it for each row
    assert decoded(tokenizer, [array("i", [40, 41]), array("i", [257])]) == ["IJ", ""]


def test_no_spaces_of_a_text_are_tidied(tmp_path):
    """transformers tidies texts of tokenizers that are not BPE: `is n't so .` would become `isn't so.`."""
    words = ["It", "is", "n't", "so", "."]
    vocabulary = [(f"\u2581{word}", -1.0) for word in words]
    rust = Tokenizer(models.Unigram([("<unk>", 0.0), *vocabulary], 0))
    rust.pre_tokenizer, rust.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    made = PreTrainedTokenizerFast(tokenizer_object=rust, clean_up_tokenization_spaces=True)
    made.save_pretrained(tmp_path)
    text = " ".join(words)
    row = array("i", made.encode(text))
    assert made.decode(row.tolist()) != text
    assert decoded(made, [row]) == [text]
    assert read_pretrained(PreTrainedTokenizerFast, str(tmp_path)).decode(row.tolist()) == text
