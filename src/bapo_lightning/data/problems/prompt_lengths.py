"""Prompts that are short enough by the bytes of their texts: tokenising takes several times longer."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from tokenizers.models import BPE
from transformers import PreTrainedTokenizerFast

from bapo_lightning.data.problems.prompts import (
    ChatOrPlainPrompt,
    ChatPrompt,
    MessagesPrompt,
    PlainPrompt,
    PromptRule,
    chat_template,
    opened,
    unknown_token,
)
from bapo_lightning.types import Problem

# Problems, largest number of tokens -> whether each prompt certainly has no more
Fits = Callable[[Sequence[Problem], int], Iterator[bool]]

CHUNK = 1000  # problems that a chat template writes in one call
BOS = 1  # token that no byte of the text stands for
SPLITTING = {"Sequence", "Digits", "Split", "Punctuation", "Whitespace", "WhitespaceSplit"}
NFC_GROWTH = 3  # largest factor in UTF-8 bytes: Unicode Standard Annex 15, section 12.1
READ_BY = ("apply_chat_template", "encode", "_encode_plus", "__call__")  # methods of a tokenizer


def none_fits(problems: Sequence[Problem], most: int) -> Iterator[bool]:
    """Knows nothing about any prompt."""
    return iter([False] * len(problems))


def fits_by_bytes(rule: PromptRule, tokenizer: Any, num_embeddings: int) -> Fits:
    """Returns a rule that compares bytes where a byte-level tokenizer makes at most one token of each, and
    the prompt is a text in a template; otherwise `none_fits`. The model must know all tokens, since prompts
    that fit are not tokenised at the start.
    """
    growth = growth_of_bytes(tokenizer)
    if growth is None or unknown_token(tokenizer) is not None:
        return none_fits
    if max(tokenizer.get_vocab().values()) >= num_embeddings:
        return none_fits

    def fits(problems: Sequence[Problem], most: int) -> Iterator[bool]:
        for first in range(0, len(problems), CHUNK):
            chunk = problems[first : first + CHUNK]
            maybe = [problem for problem in chunk if len(problem.prompt) < most]
            try:
                texts = iter(_texts(rule, tokenizer, maybe) or ())
            except Exception:  # a prompt that cannot be written is named when it is tokenised
                texts = iter(())
            for problem in chunk:
                text = next(texts, None) if len(problem.prompt) < most else None
                yield text is not None and _is_short(text, growth, most)

    return fits


def _texts(rule: Any, tokenizer: Any, problems: Sequence[Problem]) -> list[str] | None:
    """Returns the texts whose tokens the rule returns; None for rules of other classes."""
    if type(rule) is ChatOrPlainPrompt:
        rule = rule.chat if chat_template(tokenizer) else rule.plain
    if type(rule) is PlainPrompt:
        return [rule.text(problem) for problem in problems]
    if type(rule) not in (ChatPrompt, MessagesPrompt):
        return None
    chats = [rule.messages(problem) for problem in problems]
    options = {"add_generation_prompt": True, **rule.template_options}
    texts = tokenizer.apply_chat_template(chats, tokenize=False, **options)
    return [opened(text, rule.opening) for text in texts]


def _is_short(text: str, growth: int, most: int) -> bool:
    if text.isascii():
        return len(text) + BOS <= most
    try:
        return growth * len(text.encode()) + BOS <= most
    except UnicodeEncodeError:  # half characters, which the tokenizer refuses
        return False


def growth_of_bytes(tokenizer: Any) -> int | None:
    """Returns the bytes that a byte of a text may become before it is split into tokens, of which each has at
    least one; None if the tokenizer may make more tokens.
    """
    kind, fast = type(tokenizer), PreTrainedTokenizerFast
    if not issubclass(kind, fast) or any(getattr(kind, name) is not getattr(fast, name) for name in READ_BY):
        return None
    backend = tokenizer.backend_tokenizer
    if not isinstance(backend.model, BPE) or backend.model.byte_fallback or backend.padding is not None:
        return None
    splits = _parts(backend.pre_tokenizer)
    levels = [part for part in splits if part["type"] == "ByteLevel"]
    others = {part["type"] for part in splits} - {"ByteLevel"}
    if len(levels) != 1 or any(part["add_prefix_space"] for part in levels) or others - SPLITTING:
        return None
    normalisers = {part["type"] for part in _parts(backend.normalizer)} - {"Sequence"}
    return {frozenset(): 1, frozenset({"NFC"}): NFC_GROWTH}.get(frozenset(normalisers))


def _parts(component: Any) -> list[dict[str, Any]]:
    """Returns the settings of a component of a fast tokenizer and of all its parts."""
    parts, left = [], [] if component is None else [json.loads(component.__getstate__())]
    while left:
        part = left.pop()
        parts.append(part)
        left += part.get("pretokenizers", part.get("normalizers", []))
    return parts
