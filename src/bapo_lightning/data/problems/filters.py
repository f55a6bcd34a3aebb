"""Which problems of a training set are not trained on (key `data.filters`, group `filters`). Every one
removed is counted, by reason.
"""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Protocol

from bapo_lightning.data.problems.overlap import LATEX_COMMAND, tokens
from bapo_lightning.errors import ConfigError, DataError
from bapo_lightning.types import Problem

CONFLICTS = ("keep_first", "remove_all")


class Filter(Protocol):
    """Says which problems go, and why."""

    def __call__(
        self, problems: Sequence[Problem], held_out: Mapping[str, Sequence[Problem]]
    ) -> dict[str, str]:
        """Reason by id of each problem to remove.

        Args:
            problems: of the training set, those that filters before this one have left.
            held_out: validation sets by name.
        """
        ...


@dataclass(frozen=True, slots=True)
class Filtered:
    """What filters have left of a training set, and what they have removed."""

    kept: list[Problem]
    removed: dict[str, list[Problem]]  # by reason, in the order of the filters

    @property
    def counts(self) -> dict[str, int]:
        """Number removed, by reason."""
        return {reason: len(problems) for reason, problems in self.removed.items()}


def apply_filters(
    problems: Sequence[Problem], filters: Mapping[str, Filter], held_out: Mapping[str, Sequence[Problem]]
) -> Filtered:
    """Let each filter see what the ones before it have left. Raises DataError when nothing is left."""
    kept, removed = list(problems), dict[str, list[Problem]]()
    for rule in filters.values():
        reasons = rule(kept, held_out)
        for problem in kept:
            if problem.id in reasons:
                removed.setdefault(reasons[problem.id], []).append(problem)
        kept = [problem for problem in kept if problem.id not in reasons]
    filtered = Filtered(kept, removed)
    if problems and not kept:
        counts = ", ".join(f"{count} {reason}" for reason, count in filtered.counts.items())
        raise DataError(
            f"data.filters leave none of the {len(problems)} problems of data.train ({counts}); loosen one"
        )
    return filtered


@dataclass(frozen=True, slots=True)
class Length:
    """Removes problems and answers of unlikely length, in characters; None is no bound. Prompts have a limit
    in tokens of their own.
    """

    min_chars: int | None = None
    max_chars: int | None = None
    max_answer_chars: int | None = None

    def __call__(
        self, problems: Sequence[Problem], held_out: Mapping[str, Sequence[Problem]]
    ) -> dict[str, str]:
        """See `Filter`."""
        reasons = {}
        for problem in problems:
            if self.min_chars is not None and len(problem.prompt) < self.min_chars:
                reasons[problem.id] = f"shorter than {self.min_chars} characters"
            elif self.max_chars is not None and len(problem.prompt) > self.max_chars:
                reasons[problem.id] = f"longer than {self.max_chars} characters"
            elif self.max_answer_chars is not None and len(problem.answer) > self.max_answer_chars:
                reasons[problem.id] = f"answer longer than {self.max_answer_chars} characters"
        return reasons


@dataclass(frozen=True, slots=True)
class Difficulty:
    """Keeps a range of the difficulty that the column mapping reads, ends included; None is no bound, two of
    them are no filter.
    """

    low: float | None = None
    high: float | None = None

    def __call__(
        self, problems: Sequence[Problem], held_out: Mapping[str, Sequence[Problem]]
    ) -> dict[str, str]:
        """See `Filter`. Raises DataError when no problem has a difficulty."""
        if self.low is None and self.high is None:
            return {}
        known = {problem.id: problem.metadata.get("difficulty") for problem in problems}
        if known and all(value is None for value in known.values()):
            raise DataError(
                "data.filters.difficulty has a range, and no problem of data.train a difficulty; name its "
                "column: data.train.mapping.difficulty=COLUMN"
            )
        return {own_id: reason for own_id, value in known.items() if (reason := self._reason(value))}

    def _reason(self, value: float | None) -> str | None:
        if value is None:
            return "difficulty unknown"
        if self.low is not None and value < self.low:
            return f"easier than {self.low:g}"
        return f"harder than {self.high:g}" if self.high is not None and value > self.high else None


@dataclass(frozen=True, slots=True)
class Duplicates:
    """Keeps the first of the problems that ask the same (equal but for case, spacing and LaTeX's layout).

    Where their answers differ, at least one is wrong or written in another way: `keep_first` as ever, or
    `remove_all` of them.
    """

    on_conflict: str = "keep_first"

    def __post_init__(self) -> None:
        if self.on_conflict not in CONFLICTS:
            raise ConfigError(
                [
                    f"data.filters.duplicates.on_conflict={self.on_conflict} is none of its values; write "
                    f"{' or '.join(CONFLICTS)}"
                ]
            )

    def __call__(
        self, problems: Sequence[Problem], held_out: Mapping[str, Sequence[Problem]]
    ) -> dict[str, str]:
        """See `Filter`."""
        copies: dict[tuple[str, ...], list[Problem]] = {}
        for problem in problems:
            copies.setdefault(tokens(problem.prompt) or (problem.prompt,), []).append(problem)
        reasons: dict[str, str] = {}
        for first, *others in copies.values():
            differs = [tokens(other.answer) != tokens(first.answer) for other in others]
            if any(differs) and self.on_conflict == "remove_all":
                reasons |= {problem.id: "duplicates with different answers" for problem in (first, *others)}
            else:
                named = zip(others, differs, strict=True)
                reasons |= {
                    other.id: "duplicate with another answer" if differ else "duplicate"
                    for other, differ in named
                }
        return reasons


@dataclass(frozen=True, slots=True)
class Scripts:
    """Removes problems in other scripts, e.g. Chinese ones: LaTeX's commands apart, more than a share of
    their letters are foreign.
    """

    scripts: Sequence[str] | None = (
        None  # as Unicode's letter names begin: LATIN, GREEK, CJK, CYRILLIC; None is no filter
    )
    max_foreign: float = 0.1

    def __call__(
        self, problems: Sequence[Problem], held_out: Mapping[str, Sequence[Problem]]
    ) -> dict[str, str]:
        """See `Filter`."""
        if self.scripts is None:
            return {}
        wanted = tuple(self.scripts)
        reasons = {}
        for problem in problems:
            letters = Counter(filter(str.isalpha, LATEX_COMMAND.sub(" ", problem.prompt)))
            foreign = sum(
                count for letter, count in letters.items() if not _letter_name(letter).startswith(wanted)
            )
            if foreign > self.max_foreign * letters.total():
                reasons[problem.id] = "another script"
        return reasons


@cache
def _letter_name(letter: str) -> str:
    return unicodedata.name(letter, "")
