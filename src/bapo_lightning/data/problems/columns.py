"""Which columns of a table hold the parts of a problem (key `mapping` of a problem set)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bapo_lightning.data.problems.cells import (
    AnswerForm,
    SeveralAnswers,
    UnusableRow,
    get_path,
    gold_answer,
    messages_of,
    number_of,
    text_of,
)
from bapo_lightning.data.problems.prompts import PLACEHOLDER
from bapo_lightning.types import Problem


@dataclass(frozen=True, slots=True)
class ColumnMapping:
    """Columns, and fields within columns, by dotted paths as in `cells.get_path`."""

    problem: str  # text, or chat messages of which the user's is the problem
    answer: str  # gold answer
    id: str | None = None  # unique within the table; None: the row's number
    source: str | None = None  # e.g. verl's data_source; None: the set's name
    difficulty: str | None = None  # number for the difficulty filter
    keep: Sequence[str] = ()  # further ones for the reward or the prompt, kept in `Problem.metadata`
    wrapper: str | None = None  # text around each problem, with {problem} in its place, to be removed
    answer_form: AnswerForm = "text"  # layout of the answer cell, see the table in `cells`
    answer_marker: str = "####"
    several_answers: SeveralAnswers = "refuse"

    @staticmethod
    def problems(options: Mapping[str, Any]) -> Iterator[str]:
        """Yields what is wrong with the options as a whole."""
        wrapper = options.get("wrapper")
        if wrapper is not None and wrapper.count(PLACEHOLDER) != 1:
            yield f"wrapper={wrapper!r} must show once, as {PLACEHOLDER}, where the problem stands"

    @property
    def paths(self) -> list[tuple[str, str]]:
        """Key and path of every column or field that is read."""
        single = ("problem", "answer", "id", "source", "difficulty")
        named = [(key, path) for key in single if (path := getattr(self, key)) is not None]
        return named + [("keep", path) for path in self.keep]

    def read(self, row: dict[str, Any], number: int, name: str) -> Problem:
        """Returns the problem of the row of this number, from 0, in the set of this name. Raises UnusableRow
        when it gives none, and MissingField when it lacks a field.
        """
        text, metadata = self._question(get_path(row, self.problem))
        answer = gold_answer(
            get_path(row, self.answer), self.answer_form, self.answer_marker, self.several_answers
        )
        own_id = str(number) if self.id is None else text_of(get_path(row, self.id))
        if not own_id:
            raise UnusableRow("no id")
        source = name if self.source is None else text_of(get_path(row, self.source)) or name
        if self.difficulty is not None:
            metadata["difficulty"] = number_of(get_path(row, self.difficulty))
        metadata |= {path: get_path(row, path) for path in self.keep}
        return Problem(f"{name}/{own_id}", text, answer, source, metadata)

    def _question(self, cell: Any) -> tuple[str, dict[str, Any]]:
        """Returns the problem's text, and for `MessagesPrompt` all messages if there are several."""
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
