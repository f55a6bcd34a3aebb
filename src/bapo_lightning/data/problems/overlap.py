r"""Removes training problems that repeat an evaluation problem, word for word or slightly altered (key
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
from typing import Annotated

from annotated_types import Ge, Le

from bapo_lightning.system.values import Advice, Count, Share
from bapo_lightning.types import Problem

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


FewTokens = Annotated[
    int, Ge(1), Le(100), Advice("must be a whole number from 1 to 100; with more nothing would overlap")
]


@dataclass(frozen=True, slots=True)
class LeakageFilter:
    """Removes training problems that overlap with a validation set or a set named in `against`."""

    ngram: FewTokens = 8  # tokens
    min_share: Share = 0.4  # of the shorter text's n-grams
    min_shared: FewTokens = 3  # n-grams; a text with fewer overlaps only if both texts are equal
    common: Count = 10  # an n-gram of more training problems than this is a phrase
    against: Mapping[str, Sequence[Problem]] = field(default_factory=dict)  # further sets, by name

    def __call__(
        self, problems: Sequence[Problem], held_out: Mapping[str, Sequence[Problem]]
    ) -> dict[str, str]:
        """Returns the reason for each problem to remove, by id: the set with which it overlaps."""
        sets = {**held_out, **self.against}
        reserved = [(name, problem.prompt) for name, part in sets.items() for problem in part]
        name_of = {tokens(text): name for name, text in reversed(reserved)}
        reserved_grams = [_grams(text, self.ngram) for _, text in reserved]
        owners: dict[int, list[int]] = defaultdict(list)  # n-gram -> indices of the texts that hold it
        for index, grams in enumerate(reserved_grams):
            for gram in grams:
                owners[gram].append(index)
        grams_of = [_grams(problem.prompt, self.ngram) for problem in problems]
        # Copies of a text count once; otherwise a problem that the training set repeats would be a phrase.
        counts = Counter(gram for grams in set(grams_of) for gram in grams if gram in owners)
        phrases = {gram for gram, count in counts.items() if count > self.common}
        sizes = [len(grams - phrases) for grams in reserved_grams]
        reasons = {}
        for problem, grams in zip(problems, grams_of, strict=True):
            name = name_of.get(tokens(problem.prompt))
            if name is None:
                rest = grams - phrases
                shared = Counter(owner for gram in rest for owner in owners.get(gram, ()))
                enough = [
                    (-count, owner)
                    for owner, count in shared.items()
                    if count >= max(self.min_shared, self.min_share * min(len(rest), sizes[owner]))
                ]
                name = reserved[min(enough)[1]][0] if enough else None
            if name is not None:
                reasons[problem.id] = f"overlap with {name}"
        return reasons


def tokens(text: str, drawings: bool = True) -> tuple[str, ...]:
    """Returns the tokens of a problem's text without case, spacing, LaTeX's layout and final punctuation."""
    text = unicodedata.normalize("NFKC", text).lower().replace("−", "-")
    text = text if drawings else _DRAWING.sub(" ", text)
    return tuple(_TOKEN.findall(_COMMAND.sub(" ", _LAYOUT.sub(" ", text))))


def _grams(text: str, ngram: int) -> frozenset[int]:
    words = tuple(token for token in tokens(text, drawings=False) if token.isalnum() or token in _OPERATORS)
    return frozenset(hash(words[start : start + ngram]) for start in range(len(words) - ngram + 1))
