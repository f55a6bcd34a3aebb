"""Values of a table's row: found by a dotted path, and made text."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

_NUMBER = re.compile(r"-?[0-9]+(?:\.[0-9]+)?")


class UnusableRow(Exception):
    """A row gives no problem. Holds the reason, worded to be counted: "no gold answer"."""


class MissingField(Exception):
    """A row has nothing under a path. Holds the names there are at the place where it ends."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = tuple(names)
        super().__init__(self.names)


def field(row: Any, path: str) -> Any:
    """What stands under a dotted path: "prompt", "reward_model.ground_truth", "final_answer.0" for the first
    entry of a list.

    A name that itself has a dot is found, too ("extra_info.model_difficulty.DeepSeek-R1-Distill-Qwen-1.5B").
    A null on the way gives None.

    Raises:
        MissingField: there is no such field.
    """
    if row is None:
        return None
    if isinstance(row, list):
        head, _, rest = path.partition(".")
        if not head.isdigit() or int(head) >= len(row):
            raise MissingField([f"0 to {len(row) - 1}"])
        return field(row[int(head)], rest) if rest else row[int(head)]
    if not isinstance(row, Mapping):
        raise MissingField([])
    if path in row:
        return row[path]
    parts = path.split(".")
    for end in range(len(parts) - 1, 0, -1):
        head = ".".join(parts[:end])
        if head in row:
            return field(row[head], ".".join(parts[end:]))
    raise MissingField(list(row))


def text_of(value: Any) -> str:
    """A value as text without spaces around it; a whole float without its .0, nothing (also NaN) as the empty
    text.
    """
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value).strip()


def number_of(value: Any) -> float | None:
    """A number, or the first one in a text ("Level 5"); None when there is none."""
    match = _NUMBER.search(text_of(value))
    return None if match is None else float(match.group())


def messages_of(value: Any) -> list[dict[str, str]] | None:
    """Chat messages, `role` and `content` each; None when the value is something else.

    Both layouts of a list of structs are read: a list of dicts, and the dict of lists that `datasets` makes
    of a Sequence feature.
    """
    if (
        isinstance(value, Mapping)
        and isinstance(value.get("role"), list)
        and isinstance(value.get("content"), list)
    ):
        value = [
            {"role": role, "content": content}
            for role, content in zip(value["role"], value["content"], strict=True)
        ]
    if not isinstance(value, list) or not value or not all(_is_message(part) for part in value):
        return None
    return [{"role": text_of(part["role"]), "content": str(part["content"] or "")} for part in value]


def _is_message(part: Any) -> bool:
    return isinstance(part, Mapping) and {"role", "content"} <= set(part)
