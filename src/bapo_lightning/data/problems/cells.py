"""Cells of a table's row: looked up by a dotted path, and turned into text, a number or chat messages."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

_NUMBER = re.compile(r"-?[0-9]+(?:\.[0-9]+)?")


class UnusableRow(Exception):
    """A row gives no problem. Holds the reason, worded to be counted: "no gold answer"."""


class MissingField(Exception):
    """A row has no such path. Holds the names at the level where the path breaks off."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = tuple(names)
        super().__init__(self.names)


def get_path(row: Any, path: str) -> Any:
    """Returns the value under a dotted path, None if a null lies on the way.

    "reward_model.ground_truth" is a nested field, "final_answer.0" the first entry of a list. A name may
    itself hold dots ("extra_info.model_difficulty.DeepSeek-R1-Distill-Qwen-1.5B").

    Raises:
        MissingField: there is no such field.
    """
    if row is None:
        return None
    if isinstance(row, list):
        head, _, rest = path.partition(".")
        if not head.isdigit() or int(head) >= len(row):
            raise MissingField([f"0 to {len(row) - 1}"])
        return get_path(row[int(head)], rest) if rest else row[int(head)]
    if not isinstance(row, Mapping):
        raise MissingField([])
    if path in row:
        return row[path]
    parts = path.split(".")
    for end in range(len(parts) - 1, 0, -1):
        head = ".".join(parts[:end])
        if head in row:
            return get_path(row[head], ".".join(parts[end:]))
    raise MissingField(list(row))


def text_of(value: Any) -> str:
    """Returns a value as stripped text: a whole float without its .0, null and NaN as the empty text."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value).strip()


def number_of(value: Any) -> float | None:
    """Returns a number, or the first number in a text ("Level 5"); None without one."""
    match = _NUMBER.search(text_of(value))
    return None if match is None else float(match.group())


def messages_of(value: Any) -> list[dict[str, str]] | None:
    """Returns chat messages, each with `role` and `content`; None when the value is something else.

    Reads both layouts of a list of structs: a list of dicts, and the dict of lists that `datasets` makes of a
    Sequence feature.
    """
    if isinstance(value, Mapping) and all(isinstance(value.get(key), list) for key in ("role", "content")):
        pairs = zip(value["role"], value["content"], strict=True)
        value = [{"role": role, "content": content} for role, content in pairs]
    if not isinstance(value, list) or not value or not all(_is_message(part) for part in value):
        return None
    return [{"role": text_of(part["role"]), "content": str(part["content"] or "")} for part in value]


def _is_message(part: Any) -> bool:
    return isinstance(part, Mapping) and {"role", "content"} <= set(part)
