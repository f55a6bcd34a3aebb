"""Decodes sampled tokens into the texts that rewards, environments and records read."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from transformers import PreTrainedTokenizerFast

_DECODING = ("decode", "_decode")  # methods of a tokenizer that make a text


def decoded(tokenizer: Any, rows: Sequence[Sequence[int]], ends: Sequence[int] = ()) -> list[str]:
    """Returns the texts of rows of token ids without end tokens and padding: the tokenizer's, and the special
    tokens among `ends`. Every other special token stays, since a format may write `<think>` or `<tool_call>`
    with it. A fast tokenizer whose Python class does not change decoding decodes all rows at once, with one
    thread for each core.
    """
    unwritten, in_python = _facts(tokenizer, tuple(ends))
    kept = [[token for token in row if token not in unwritten] for row in rows]
    if in_python:
        return [str(tokenizer.decode(row, skip_special_tokens=False)) for row in kept]
    texts: list[str] = tokenizer.backend_tokenizer.decode_batch(kept, skip_special_tokens=False)
    return texts


@lru_cache(maxsize=8)  # called for every turn of every conversation
def _facts(tokenizer: Any, ends: tuple[int, ...]) -> tuple[frozenset[int], bool]:
    """Returns end tokens and padding, and whether texts are made in Python."""
    kind = type(tokenizer)
    of_rust = (getattr(kind, name, None) is getattr(PreTrainedTokenizerFast, name) for name in _DECODING)
    in_python = not all(of_rust)
    decode: Any = tokenizer.decode if in_python else tokenizer.backend_tokenizer.decode
    named = {*ends, getattr(tokenizer, "eos_token_id", None), getattr(tokenizer, "pad_token_id", None)}
    unwritten = frozenset(
        token
        for token in named
        if token is not None
        and decode([token], skip_special_tokens=True) != decode([token], skip_special_tokens=False)
    )
    return unwritten, in_python
