r"""Training problems that repeat an evaluation problem, word for word or slightly altered (key
`data.filters.overlap`).

Both texts are split into tokens; case, spacing and LaTeX's layout do not count. N-grams are taken over words,
numbers and operators; [asy] drawings are dropped first. N-grams of many training problems are phrases ("where
m and n are relatively prime positive integers. Find m + n.") and are ignored. A training problem overlaps
when at least `min_share` of the shorter text's remaining n-grams occur in the other text.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from bapo_lightning.types import Problem
from bapo_lightning.values import Count, CountOrZero, Share

LATEX_COMMAND = re.compile(r"\\[a-zA-Z]+")
_DRAWING = re.compile(r"\[asy\].*?\[/asy\]", re.DOTALL)
_LAYOUT = re.compile(
    r"\\(?:left|right|big|bigg|displaystyle|limits|quad|qquad|text|textbf|textit|mathrm|mathbf|mathit"
    r"|operatorname|begin|end)(?![a-z])\*?"
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
    """Removes training problems that overlap with a validation set or with a set named in `against`."""

    ngram: Count = 8  # tokens
    min_share: Share = 0.4  # of the shorter text's n-grams
    min_shared: Count = 3  # n-grams; a text with fewer overlaps only if both texts are equal
    common: CountOrZero = 10  # an n-gram of more training problems than this is a phrase
    against: Mapping[str, Sequence[Problem]] = field(default_factory=dict)  # further sets, by name

    def __call__(
        self, problems: Sequence[Problem], held_out: Mapping[str, Sequence[Problem]]
    ) -> dict[str, str]:
        """Returns the reason for each problem to remove, by id: the set that it overlaps with."""
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
    """Texts to keep out of the training set, by their n-grams."""

    def __init__(self, ngram: int) -> None:
        self._ngram = ngram
        self._name_of: dict[Tokens, str] = {}
        self._owners: dict[int, list[int]] = defaultdict(list)  # n-gram -> indices of the texts that hold it
        self._grams: list[tuple[str, Grams]] = []

    def add(self, name: str, texts: Sequence[str]) -> None:
        """Adds the texts of a set."""
        for text in texts:
            self._name_of.setdefault(tokens(text), name)
            grams = _grams(text, self._ngram)
            for gram in grams:
                self._owners[gram].append(len(self._grams))
            self._grams.append((name, grams))

    def matches(
        self, texts: Sequence[str], common: int, min_share: float, min_shared: int
    ) -> list[str | None]:
        """Returns for each text the name of the set that it overlaps with, or None."""
        all_grams = [_grams(text, self._ngram) for text in texts]
        # Copies of a text count once; otherwise a problem repeated in the training set would pass for a
        # phrase.
        counts = Counter(gram for grams in set(all_grams) for gram in grams if gram in self._owners)
        phrases = {gram for gram, count in counts.items() if count > common}
        sizes = [(name, len(grams - phrases)) for name, grams in self._grams]
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
                if count >= min_shared and count >= min_share * min(own, sizes[owner][1])
            ]
            found.append(sizes[min(enough)[1]][0] if enough else None)
        return found


def tokens(text: str, drawings: bool = True) -> Tokens:
    """Returns the tokens of a problem's text without case, spacing, LaTeX's layout and final punctuation."""
    text = unicodedata.normalize("NFKC", text).lower().replace("−", "-")
    text = text if drawings else _DRAWING.sub(" ", text)
    return tuple(_TOKEN.findall(_COMMAND.sub(" ", _LAYOUT.sub(" ", text))))


def _grams(text: str, ngram: int) -> Grams:
    words = tuple(token for token in tokens(text, drawings=False) if token.isalnum() or token in _OPERATORS)
    return frozenset(hash(words[start : start + ngram]) for start in range(len(words) - ngram + 1))
