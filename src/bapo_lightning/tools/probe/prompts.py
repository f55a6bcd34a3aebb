"""Prompts of a probe: the tokens of random ones, and texts that a language model knows well."""

from __future__ import annotations

from typing import Any

# Random tokens reach rows of the embedding that no test text has; texts reach what training changes.
CANARIES = (
    "The river rises in the hills above the town and reaches the sea after some forty miles, past three "
    "old mills and a bridge of stone.",
    "def mean(values):\n    if not values:\n        raise ValueError('no values')\n    return sum(values) / "
    "len(values)\n",
    "Question: Anna has 12 apples and gives a third of them to Ben. How many are left?\nAnswer: 12 / 3 = 4, "
    "and 12 - 4 = 8, so 8 apples are left.",
    "El tren sale a las ocho y llega a las diez y media. Der Zug fährt um acht ab und kommt um halb elf an.",
)


def canary_prompts(tokenizer: Any, longest: int) -> list[list[int]]:
    """Returns the canary texts as tokens, cut after `longest`; one token alone would not be scored."""
    prompts = [list(tokenizer(text)["input_ids"])[:longest] for text in CANARIES]
    return [ids for ids in prompts if len(ids) > 1]


def allowed_tokens(vocab_size: int, tokenizer: Any | None) -> list[int]:
    """Returns the tokens that a prompt may have: known to the model, and ordinary in its tokenizer. Added
    tokens may stand for pictures, which a server would look for in vain.
    """
    if tokenizer is None:
        return list(range(vocab_size))
    special = {*tokenizer.all_special_ids, *tokenizer.get_added_vocab().values()}
    return [token for token in range(min(vocab_size, len(tokenizer))) if token not in special]
