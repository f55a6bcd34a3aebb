"""Tokens that structure a conversation: the beginning, role and end of a message. No text of an environment
may become such a token.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

_ROLES = ("system", "user", "assistant", "tool")
_TRIES = 8


class ControlTokens:
    """Added tokens of a tokenizer that are special, or that its chat template writes."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        added = tokenizer.added_tokens_decoder
        written = _written_by_template(tokenizer) if added else ""
        texts = {
            number: token.content
            for number, token in added.items()
            if token.special or (token.content.strip() and token.content in written)
        }
        longest_first = sorted(texts.values(), key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, longest_first)))
        self._ids = set(texts) - (_of_unknown_characters(tokenizer) if added else set())

    def among(self, ids: Iterable[int]) -> list[int]:
        """Returns the control tokens among some token ids."""
        return [number for number in ids if number in self._ids]

    def removed_from(self, text: str) -> str:
        """Returns a text without parts that are encoded as control tokens; "" if tokens remain."""
        for _ in range(_TRIES):
            text = self._without_names(text)
            ids = self._tokenizer.encode(text, add_special_tokens=False)
            if not self.among(ids):
                return text
            # A normalizer made a control token of other characters.
            text = self._tokenizer.decode([number for number in ids if number not in self._ids])
        return ""

    def _without_names(self, text: str) -> str:
        while self._pattern.pattern and (shorter := self._pattern.sub("", text)) != text:
            text = shorter  # two halves may have joined to a new name
        return text


def _written_by_template(tokenizer: Any) -> str:
    if not tokenizer.chat_template:
        return ""
    texts = [str(tokenizer.chat_template)]
    chat = [{"role": "user", "content": "1"}, {"role": "assistant", "content": "2"}]
    for role in _ROLES:  # names that the template composes, such as <|user|>
        for before in ([], chat):
            with suppress(Exception):  # whatever it raises for a role that it does not know
                messages = [*before, {"role": role, "content": "3"}]
                texts.append(
                    tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
                )
    return "\n".join(texts)


def _of_unknown_characters(tokenizer: Any) -> set[int | None]:
    """Returns the token of unknown characters, which any text may hold, unless it has another use as well."""
    names = dict(tokenizer.special_tokens_map)
    return {tokenizer.unk_token_id} if names.pop("unk_token", None) not in names.values() else set()
