r"""Training problems that are evaluation problems, word for word or slightly altered (key
`data.filters.overlap`).

Both texts become tokens (case, spacing and LaTeX's layout do not count), and those that are words, numbers or
operators, drawings apart, give their n-grams.
N-grams that many training problems have ("where m and n are relatively prime positive integers. Find m + n.")
say nothing and are left aside. A training problem overlaps when of the other n-grams of the shorter text at
least a share is in the other one.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from bapo_lightning.types import Problem

LATEX_COMMAND = re.compile(r"\\[a-zA-Z]+")
_DRAWING = re.compile(r"\[asy\].*?\[/asy\]", re.DOTALL)
_LAYOUT = re.compile(
    r"\\(?:left|right|big|bigg|displaystyle|limits|quad|qquad|text|textbf|textit|mathrm|mathbf|mathit|operatorname|begin|end)(?![a-z])\*?"
    r"|\\[,;:! ()\[\]]|[${}~&]"
)
_COMMAND = re.compile(r"\\(?:[dt](?=frac|binom))?")
_CJK = r"\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af"  # each is a token
_TOKEN = re.compile(rf"[{_CJK}]|[^\W\d_{_CJK}]+|\d+|[.,](?=\d)|[^\w\s.,;:?]")
_OPERATORS = frozenset("=<>+-*/^")

Tokens = tuple[str, ...]
Grams = frozenset[int]  # hashes


@dataclass(frozen=True, slots=True)
class Overlap:
    """Removes the training problems that overlap with a validation set or another one that is named."""

    ngram: int = 8  # tokens
    min_share: float = 0.4  # of the shorter text's n-grams
    min_shared: int = 3  # n-grams; of a shorter text, only one that is equal as a whole overlaps
    common: int = 10  # training problems that share an n-gram which says nothing
    against: Mapping[str, Sequence[Problem]] = field(default_factory=dict)  # further sets, by name

    def __call__(
        self, problems: Sequence[Problem], held_out: Mapping[str, Sequence[Problem]]
    ) -> dict[str, str]:
        """Reason by id of each problem to remove: the name of the set."""
        index = _Index(self.ngram)
        for name, reserved in {**held_out, **self.against}.items():
            index.add(name, [problem.prompt for problem in reserved])
        found = index.matches(
            [problem.prompt for problem in problems], self.common, self.min_share, self.min_shared
        )
        return {
            problem.id: f"overlap with {name}"
            for problem, name in zip(problems, found, strict=True)
            if name is not None
        }


class _Index:
    """The texts to stay away from."""

    def __init__(self, ngram: int) -> None:
        self._ngram = ngram
        self._name_of: dict[Tokens, str] = {}
        self._owners: dict[int, list[int]] = defaultdict(list)  # n-gram -> numbers of the texts that have it
        self._grams: list[tuple[str, Grams]] = []

    def add(self, name: str, texts: Sequence[str]) -> None:
        """Stay away from the texts of a set."""
        for text in texts:
            self._name_of.setdefault(tokens(text), name)
            grams = _grams(text, self._ngram)
            for gram in grams:
                self._owners[gram].append(len(self._grams))
            self._grams.append((name, grams))

    def matches(
        self, texts: Sequence[str], common: int, min_share: float, min_shared: int
    ) -> list[str | None]:
        """For each text the set of which it overlaps with a text, or None."""
        all_grams = [_grams(text, self._ngram) for text in texts]
        # A text and its copies count once, so that a problem that stands often in the training set is not
        # taken for a phrase.
        counts = Counter(gram for grams in set(all_grams) for gram in grams if gram in self._owners)
        phrases = {gram for gram, count in counts.items() if count > common}
        telling = [(name, len(grams - phrases)) for name, grams in self._grams]
        found: list[str | None] = []
        for text, grams in zip(texts, all_grams, strict=True):
            equal = self._name_of.get(tokens(text))
            if equal is not None:
                found.append(equal)
                continue
            shared = Counter(
                owner for gram in grams if gram not in phrases for owner in self._owners.get(gram, ())
            )
            own = len(grams - phrases) if shared else 0
            enough = [
                (-count, owner)
                for owner, count in shared.items()
                if count >= min_shared and count >= min_share * min(own, telling[owner][1])
            ]
            found.append(telling[min(enough)[1]][0] if enough else None)
        return found


def tokens(text: str, drawings: bool = True) -> Tokens:
    """What of a problem's text says what it asks: texts that ask the same may differ in case, spacing,
    LaTeX's layout and last mark.
    """
    text = unicodedata.normalize("NFKC", text).lower().replace("−", "-")
    text = text if drawings else _DRAWING.sub(" ", text)
    return tuple(_TOKEN.findall(_COMMAND.sub(" ", _LAYOUT.sub(" ", text))))


def _grams(text: str, ngram: int) -> Grams:
    words = tuple(token for token in tokens(text, drawings=False) if token.isalnum() or token in _OPERATORS)
    return frozenset(hash(words[start : start + ngram]) for start in range(len(words) - ngram + 1))
