r"""Maps columns of a table to the parts of a problem (key `mapping` of a problem set), and reads their cells:
text, a number, chat messages or the gold answer.

    form of answer   cell                                    gold answer
    text             "34", 34, 34.0, ["34"]                  34
    behind_marker    "Half of 8 is <<8/2=4>>4\n#### 4"       4       (GSM8K)
    last_box         "... so x is $\boxed{\frac{1}{2}}$."    \frac{1}{2}    (solutions of MATH)
    json_list        '["34"]'                                34      (SkyWork-OR1)
"""

from __future__ import annotations

import ast
import json
import math
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import date, time
from decimal import Decimal
from numbers import Number
from typing import Any, Literal

from bapo_lightning.data.problems.prompts import PLACEHOLDER
from bapo_lightning.rewards.extract import closing_brace
from bapo_lightning.types import Problem

AnswerForm = Literal["text", "behind_marker", "last_box", "json_list"]
SeveralAnswers = Literal["refuse", "join"]
# Matches 1,200 and -0.5 and .5 and 1e-05, and 3/8; in "Level-5" and "Lv.5" a 5.
_UNSIGNED = (
    r"(?:(?:[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]+)(?:\.[0-9]+)?|(?<!\w)\.[0-9]+)(?:[eE][-+]?[0-9]+)?"
)
_NUMBER = re.compile(rf"((?:(?<!\w)-)?{_UNSIGNED})(?:\s*/\s*({_UNSIGNED}))?")
_ROLES = {"human": "user", "gpt": "assistant"}  # of ShareGPT's messages
_BOX = re.compile(r"\\(?:boxed|fbox)(?![a-zA-Z])\s*")
_HALF_CHARACTER = re.compile("[\ud800-\udfff]")
_NO_ANSWER = ("proof", "unknown")  # in place of an answer, in NuminaMath and OpenR1-Math
_THOUSANDS = re.compile(r"[-+]?[0-9]{1,3}(?:,[0-9]{3})+(?:\.[0-9]+)?")


class UnusableRow(Exception):
    """A row gives no problem. Holds the reason, by which such rows are counted: "no gold answer"."""


class ProblemSet(list[Problem]):
    """Problems in the order of their table."""

    def __init__(
        self, problems: list[Problem], origin: str, num_rows: int, left_out: Mapping[str, int]
    ) -> None:
        super().__init__(problems)
        self.origin = origin  # "openai/gsm8k (main, split train)"
        self.num_rows = num_rows  # of the table, before `limit`
        self.left_out = dict(left_out)  # number of rows left out, by reason


class MissingField(Exception):
    """A row has no such path. `args` are the names at the level at which the path breaks off."""


def prefixes(path: str) -> list[str]:
    """Returns the prefixes of a dotted path, the longest first: a.b.c, a.b, a."""
    parts = path.split(".")
    return [".".join(parts[:end]) for end in range(len(parts), 0, -1)]


def get_path(row: Any, path: str) -> Any:
    """Returns the value at a dotted path, None if a null lies on the way. Raises MissingField.

    "reward_model.ground_truth" is a nested field, "final_answer.0" the first entry of a list. A name may
    itself hold dots ("extra_info.model_difficulty.DeepSeek-R1-Distill-Qwen-1.5B").
    """
    if row is None:
        return None
    if isinstance(row, list):
        head, _, rest = path.partition(".")
        if not head.isdigit() or int(head) >= len(row):
            raise MissingField(f"0 to {len(row) - 1}")
        return get_path(row[int(head)], rest) if rest else row[int(head)]
    names = row if isinstance(row, dict | Mapping) else {}
    if path in names:
        return row[path]
    name = next((prefix for prefix in prefixes(path) if prefix in names), None)
    if name is None:
        raise MissingField(*names)
    return get_path(row[name], path[len(name) + 1 :])


def has_path(row: Any, path: str) -> bool:
    """Whether a row has this path."""
    with suppress(MissingField):
        get_path(row, path)
        return True
    return False


def text_of(value: Any) -> str:
    """Returns a value as stripped text: a whole float without its .0, null and NaN as the empty text.
    Raises UnusableRow: it is neither text nor number, date or time.
    """
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    if isinstance(value, float) and value.is_integer():
        return str(int(Decimal(repr(value))))  # the float 1e23 is not exactly a power of ten
    if not isinstance(value, str | Number | date | time):
        raise UnusableRow(f"a cell that is not text but {_described(value)}")
    if _HALF_CHARACTER.search(text := str(value)):
        raise UnusableRow("a text with half a character (a lone surrogate)")
    return text.strip()


def number_of(value: Any) -> float | None:
    """Returns a number, or the first in a text ("Level 5", "3/8" by value); None without one and for 0/0."""
    match = _NUMBER.search(text_of(value))
    above, below = (float((match[part] or "1").replace(",", "")) for part in (1, 2)) if match else (0.0, 0.0)
    return above / below if below else None


def messages_of(value: Any) -> list[dict[str, str]] | None:
    """Returns chat messages, each with `role` and `content`; None if the value is something else. Reads a
    list of dicts, the dict of lists that `datasets` makes of a Sequence feature, ShareGPT's `from` and
    `value`, contents in parts of text, and any of these as JSON or as Python prints it. Raises UnusableRow: a
    content is not text.
    """
    if isinstance(value, str) and value.lstrip().startswith("[{"):
        text = value
        for read in (json.loads, ast.literal_eval):  # pandas writes Python's spelling into a CSV
            with suppress(ValueError, SyntaxError, RecursionError, MemoryError):
                value = read(text.strip())
                break
    if isinstance(value, Mapping) and all(isinstance(value.get(key), list) for key in ("role", "content")):
        pairs = zip(value["role"], value["content"], strict=True)
        value = [{"role": role, "content": content} for role, content in pairs]
    if not isinstance(value, list) or not value:
        return None
    if not all(isinstance(part, Mapping) for part in value):
        return None
    for role, content in (("role", "content"), ("from", "value")):
        if all({role, content} <= set(part) for part in value):
            roles = (text_of(part[role]) for part in value)
            contents = (_content(part[content]) for part in value)
            return [
                {"role": _ROLES.get(one, one), "content": text}
                for one, text in zip(roles, contents, strict=True)
            ]
    return None


def gold_answer(cell: Any, form: AnswerForm, marker: str, several: SeveralAnswers) -> str:
    """Returns the gold answer in a cell of this form, see the table above; `behind_marker` reads `marker`.
    A list of answers is refused or joined with ", ", as `several` says. Raises UnusableRow.
    """
    if form == "json_list":
        cell = _parsed(cell)
    texts = [text for entry in (cell if isinstance(cell, list) else [cell]) if (text := text_of(entry))]
    if len(texts) > 1 and several == "refuse":
        raise UnusableRow("several gold answers")
    answer = ", ".join(_extracted(text, form, marker) for text in texts)
    if not answer:
        raise UnusableRow("no gold answer")
    if answer in _NO_ANSWER:
        raise UnusableRow(f"{answer} instead of a gold answer")
    return answer.replace(",", "") if form == "behind_marker" and _THOUSANDS.fullmatch(answer) else answer


def last_box(text: str) -> str | None:
    r"""Returns the content of the last \boxed{} or \fbox{}; `\boxed 5` holds 5. None without a closed box."""
    boxes = list(_BOX.finditer(text))
    if not boxes:
        return None
    start = boxes[-1].end()
    if text[start : start + 1] != "{":
        return text[start : start + 1].strip("\\ \n") or None  # no backslash of a command
    end = closing_brace(text, start + 1)
    return None if end is None else text[start + 1 : end].strip()


def _content(value: Any) -> str:
    if isinstance(value, str):
        text_of(value)  # refuses half characters
        return value
    if not isinstance(value, list | Mapping):
        return text_of(value)
    parts = value if isinstance(value, list) else [value]
    texts = [part.get("text") if isinstance(part, Mapping) else part for part in parts]
    if wrong := [part for part, text in zip(parts, texts, strict=True) if not isinstance(text, str | None)]:
        raise UnusableRow(f"a message with {_described(wrong[0])}")
    if any(isinstance(part, Mapping) and part.get("text") is None for part in parts):
        raise UnusableRow("a message with a part that is not text")
    return "".join(text for text in texts if text)


def _described(value: Any) -> str:
    inner = value[0] if isinstance(value, list) and value else value
    fields = f" of {', '.join(map(str, inner))}" if isinstance(inner, Mapping) and inner else ""
    what = {"dict": "fields", "list": "a list", "bytes": "bytes"}.get(type(value).__name__, "an object")
    return f"{what}{fields}; name a field of it in the mapping" if fields else what


def _parsed(cell: Any) -> list[Any]:
    with suppress(TypeError, ValueError):
        if isinstance(entries := json.loads(cell), list):
            return entries
    raise UnusableRow("an answer that is not a JSON list")


def _extracted(text: str, form: AnswerForm, marker: str) -> str:
    if form == "behind_marker" and marker not in text:
        raise UnusableRow(f"no {marker} in the answer")
    if form == "behind_marker":
        return text.rpartition(marker)[2].strip()
    box = last_box(text) if form == "last_box" else text
    if box is None:
        raise UnusableRow("no box in the answer")
    return box


@dataclass(frozen=True, slots=True)
class ColumnMapping:
    """Columns, and fields within columns, by dotted paths as in `get_path`."""

    problem: str  # text, or chat messages of which the user's is the problem
    answer: str  # gold answer
    id: str | None = None  # unique within the table; None: the row's number
    source: str | None = None  # e.g. verl's data_source; None: the set's name
    difficulty: str | None = None  # number for the difficulty filter
    keep: Sequence[str] = ()  # more columns for the reward or the prompt, kept in `Problem.metadata`
    wrapper: str | None = None  # text around each problem, with {problem} in its place, to be removed
    answer_form: AnswerForm = "text"  # layout of the answer cell, see the table above
    answer_marker: str = "####"
    several_answers: SeveralAnswers = "refuse"

    @staticmethod
    def problems(options: Mapping[str, Any]) -> Iterator[str]:
        """Yields mistakes in the options as a whole."""
        wrapper = options.get("wrapper")
        if wrapper is not None and wrapper.count(PLACEHOLDER) != 1:
            yield f"wrapper={wrapper!r} must contain {PLACEHOLDER} exactly once, in place of the problem"

    @property
    def paths(self) -> list[tuple[str, str]]:
        """Key and path of every column or field that is read."""
        single = ("problem", "answer", "id", "source", "difficulty")
        named = [(key, path) for key in single if (path := getattr(self, key)) is not None]
        return named + [("keep", path) for path in self.keep]

    def read(self, row: dict[str, Any], number: int, name: str, known: Collection[str] = ()) -> Problem:
        """Returns the problem of row `number` of the set `name`. A path that is `known` from other rows
        counts as null if this row does not have it. Raises UnusableRow, MissingField.
        """

        def at(path: str) -> Any:
            try:
                return get_path(row, path)
            except MissingField:
                if path in known:
                    return None
                raise

        text, metadata = self._question(at(self.problem))
        cell = at(self.answer)
        answer = gold_answer(cell, self.answer_form, self.answer_marker, self.several_answers)
        local_id = str(number) if self.id is None else text_of(at(self.id))
        if not local_id:
            raise UnusableRow("no id")
        source = name if self.source is None else text_of(at(self.source)) or name
        if self.difficulty is not None:
            metadata["difficulty"] = number_of(at(self.difficulty))
        metadata |= {path: at(path) for path in self.keep}
        return Problem(f"{name}/{local_id}", text, answer, source, metadata)

    def _question(self, cell: Any) -> tuple[str, dict[str, Any]]:
        messages = messages_of(cell)
        if messages is None:
            return self._unwrapped(text_of(cell)), {}
        users = [message["content"] for message in messages if message["role"] == "user"]
        if len(users) != 1 or messages[-1]["role"] != "user":
            raise UnusableRow("a conversation, not one question")
        return self._unwrapped(users[0].strip()), {} if len(messages) == 1 else {"messages": messages}

    def _unwrapped(self, text: str) -> str:
        if not text:
            raise UnusableRow("no problem text")
        if self.wrapper is None:
            return text
        before, _, behind = self.wrapper.strip().partition(PLACEHOLDER)
        if not (text.startswith(before) and text.endswith(behind) and len(text) > len(before) + len(behind)):
            raise UnusableRow("no wrapper around the problem")
        return text[len(before) : len(text) - len(behind)].strip()
