"""Which columns of a table hold what a problem needs (key `mapping` of a problem set)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from bapo_lightning.data.problems.cells import UnusableRow, field, messages_of, number_of, text_of
from bapo_lightning.data.problems.gold import FORMS, SEVERAL, gold_answer
from bapo_lightning.data.problems.prompts import PLACE
from bapo_lightning.errors import ConfigError
from bapo_lightning.types import Problem


@dataclass(frozen=True, slots=True)
class ColumnMapping:
    """Columns and fields by dotted paths, see `cells.field`."""

    problem: str  # text, or chat messages of which the user's is the problem
    answer: str  # gold answer
    id: str | None = None  # unique within the table; None: the row's number
    source: str | None = None  # e.g. verl's data_source; None: the set's name
    difficulty: str | None = None  # number that filters can ask for
    keep: Sequence[str] = ()  # further ones, for the reward or the prompt: `Problem.metadata`
    wrapper: str | None = None  # text around each problem, with {problem} in its place, to be taken off
    answer_form: str = "text"  # see `gold`
    answer_marker: str = "####"
    several_answers: str = "refuse"

    def __post_init__(self) -> None:
        wrong = []
        if self.answer_form not in FORMS:
            wrong.append(
                f"mapping.answer_form={self.answer_form} is none of its values; write one of "
                f"{', '.join(FORMS)}"
            )
        if self.several_answers not in SEVERAL:
            wrong.append(
                f"mapping.several_answers={self.several_answers} is none of its values; write one of "
                f"{', '.join(SEVERAL)}"
            )
        if self.wrapper is not None and self.wrapper.count(PLACE) != 1:
            wrong.append(
                f"mapping.wrapper={self.wrapper!r} must show once, as {PLACE}, where the problem stands"
            )
        if wrong:
            raise ConfigError(wrong)

    @property
    def paths(self) -> list[tuple[str, str]]:
        """Key and path of everything that is read."""
        named = [("problem", self.problem), ("answer", self.answer)]
        optional = [
            ("id", self.id),
            ("source", self.source),
            ("difficulty", self.difficulty),
            *(("keep", path) for path in self.keep),
        ]
        return named + [(key, path) for key, path in optional if path is not None]

    def read(self, row: dict[str, Any], number: int, name: str) -> Problem:
        """The problem of a row.

        Args:
            row: of the table.
            number: of the row, from 0.
            name: of the set.

        Raises:
            UnusableRow: it gives none.
            MissingField: the row lacks a field.
        """
        text, metadata = self._question(field(row, self.problem))
        answer = gold_answer(
            field(row, self.answer), self.answer_form, self.answer_marker, self.several_answers
        )
        own_id = str(number) if self.id is None else text_of(field(row, self.id))
        if not own_id:
            raise UnusableRow("no id")
        source = name if self.source is None else text_of(field(row, self.source)) or name
        if self.difficulty is not None:
            metadata["difficulty"] = number_of(field(row, self.difficulty))
        metadata |= {path: field(row, path) for path in self.keep}
        return Problem(f"{name}/{own_id}", text, answer, source, metadata)

    def _question(self, cell: Any) -> tuple[str, dict[str, Any]]:
        """The problem's text; with more messages than the user's, all of them are kept for
        `MessagesPrompt`.
        """
        messages = messages_of(cell)
        if messages is None:
            return self._bare(text_of(cell)), {}
        users = [message["content"] for message in messages if message["role"] == "user"]
        if len(users) != 1 or messages[-1]["role"] != "user":
            raise UnusableRow("a conversation, not one question")
        return self._bare(users[0].strip()), {} if len(messages) == 1 else {"messages": messages}

    def _bare(self, text: str) -> str:
        if not text:
            raise UnusableRow("no problem text")
        if self.wrapper is None:
            return text
        before, _, behind = self.wrapper.strip().partition(PLACE)
        if not (text.startswith(before) and text.endswith(behind) and len(text) > len(before) + len(behind)):
            raise UnusableRow("no wrapper around the problem")
        return text[len(before) : len(text) - len(behind)].strip()
