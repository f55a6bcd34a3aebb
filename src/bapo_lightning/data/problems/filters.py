"""Filters of the training problems (key `data.filters`). Every removed problem is counted by reason."""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Literal

from bapo_lightning.data.problems.overlap import LATEX_COMMAND, tokens
from bapo_lightning.system.errors import DataError
from bapo_lightning.system.values import Count, CountOrZero, NonNegative
from bapo_lightning.types import Problem

Sets = Mapping[str, Sequence[Problem]]  # by name
Reasons = dict[str, str]  # why each problem is removed, by its id
Filter = Callable[[Sequence[Problem], Sets], Reasons]  # training problems kept so far, validation sets


@dataclass(frozen=True, slots=True)
class Filtered:
    """Training problems that the filters keep and remove."""

    kept: list[Problem]
    removed: dict[str, list[Problem]]  # by reason, in the order of the filters

    @property
    def counts(self) -> dict[str, int]:
        """Number of removed problems by reason."""
        return {reason: len(problems) for reason, problems in self.removed.items()}


def apply_filters(problems: Sequence[Problem], filters: Mapping[str, Filter], held_out: Sets) -> Filtered:
    """Applies each filter to the problems that earlier filters keep. Raises DataError if none is left."""
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
    """Removes problems of unlikely length, in characters; None: no bound. See `scale.max_prompt_tokens`."""

    min_chars: CountOrZero | None = None
    max_chars: Count | None = None
    max_answer_chars: Count | None = None

    def __call__(self, problems: Sequence[Problem], held_out: Sets) -> Reasons:
        """Returns the reason for each problem to remove."""
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
    """Keeps problems in a range of difficulty (`mapping.difficulty`), ends included. None: no bound. Without
    any bound nothing is removed. Raises DataError if no problem has a difficulty.
    """

    low: float | None = None
    high: float | None = None

    def __call__(self, problems: Sequence[Problem], held_out: Sets) -> Reasons:
        """Returns the reason for each problem to remove."""
        if self.low is None and self.high is None:
            return {}
        known = {problem.id: problem.metadata.get("difficulty") for problem in problems}
        if known and all(value is None for value in known.values()):
            raise DataError(
                "data.filters.difficulty has a range, but no problem of data.train has a difficulty; name "
                "its column: data.train.mapping.difficulty=COLUMN"
            )
        return {problem_id: reason for problem_id, value in known.items() if (reason := self._reason(value))}

    def _reason(self, value: float | None) -> str | None:
        if value is None:
            return "difficulty unknown"
        if self.low is not None and value < self.low:
            return f"easier than {self.low:g}"
        return f"harder than {self.high:g}" if self.high is not None and value > self.high else None


@dataclass(frozen=True, slots=True)
class Duplicates:
    """Keeps the first of several problems whose texts are equal up to case, spacing and LaTeX's layout.

    If their answers differ, at least one is wrong or written differently: `keep_first` still keeps the first,
    `remove_all` removes all of them.
    """

    on_conflict: Literal["keep_first", "remove_all"] = "keep_first"

    def __call__(self, problems: Sequence[Problem], held_out: Sets) -> Reasons:
        """Returns the reason for each problem to remove."""
        copies: dict[tuple[str, ...], list[Problem]] = {}
        for problem in problems:
            copies.setdefault(tokens(problem.prompt) or (problem.prompt,), []).append(problem)
        reasons: dict[str, str] = {}
        for first, *others in copies.values():
            differs = [tokens(other.answer) != tokens(first.answer) for other in others]
            if any(differs) and self.on_conflict == "remove_all":
                reasons |= {problem.id: "duplicates with different answers" for problem in (first, *others)}
            else:
                for other, differ in zip(others, differs, strict=True):
                    reasons[other.id] = "duplicate with another answer" if differ else "duplicate"
        return reasons


@dataclass(frozen=True, slots=True)
class Scripts:
    """Removes problems in other scripts, e.g. Chinese ones. Letters of LaTeX commands do not count."""

    # Scripts to keep, by first words of Unicode's letter names: LATIN, GREEK, CJK, CYRILLIC. None: keep all.
    scripts: Sequence[str] | None = None
    max_foreign: NonNegative = 0.1  # largest share of letters in other scripts

    def __call__(self, problems: Sequence[Problem], held_out: Sets) -> Reasons:
        """Returns the reason for each problem to remove."""
        if self.scripts is None:
            return {}
        wanted = tuple(self.scripts)
        reasons = {}
        for problem in problems:
            letters = Counter(filter(str.isalpha, LATEX_COMMAND.sub(" ", problem.prompt)))
            foreign = (count for one, count in letters.items() if not _letter_name(one).startswith(wanted))
            if sum(foreign) > self.max_foreign * letters.total():
                reasons[problem.id] = "another script"
        return reasons


@cache
def _letter_name(letter: str) -> str:
    return unicodedata.name(letter, "")
