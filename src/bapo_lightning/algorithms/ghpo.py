"""GHPO (arXiv 2507.10628): groups without a right answer get a part of the solution in their prompt."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Annotated, Any

from annotated_types import MinLen

from bapo_lightning.data.problems.prompts import PLACEHOLDER, Encode
from bapo_lightning.data.problems.solutions import require_solutions, solutions
from bapo_lightning.data.rollouts.rules import GroupRule
from bapo_lightning.system.errors import DataError
from bapo_lightning.system.values import Advice, Share, Size
from bapo_lightning.types import Group, Problem

HINT = "{hint}"
Shares = Annotated[
    tuple[Share, ...], MinLen(1), Advice("must be rising shares of the solution, e.g. [0.25, 0.5, 0.75]")
]


@dataclass(frozen=True)
class Hints(GroupRule):
    """Shows a part of the solution in the prompt of a group without a right answer, and more of it if that
    does not help. The group is trained on with the hint in its prompt.

    Unlike in the paper, the first updates do not show hints for all problems.
    """

    max_prompt_tokens: Size  # a longer prompt gets no hint; the authors cut off its beginning
    template: str  # of the problem with the hint; the authors' template: conf/data/base.yaml
    column: str = "solution"  # of the problem's metadata
    shares: Shares = (0.25, 0.5, 0.75)  # of its characters, one after another

    @staticmethod
    def problems(options: Mapping[str, Any]) -> Iterator[str]:
        """Yields mistakes in options of the right types."""
        shares, template = options["shares"], options["template"]
        if not all(smaller < larger for smaller, larger in pairwise(shares)):
            yield f"shares={list(shares)} must rise: each hint shows more; write [0.25, 0.5, 0.75]"
        if not all(part in template for part in (PLACEHOLDER, HINT)):
            yield f"template={template!r} must show {PLACEHOLDER} and {HINT}, where their texts go"

    def check(self, problems: Sequence[Problem], encode: Encode) -> None:
        """Raises DataError if no problem has a solution, or no prompt with a hint is short enough."""
        require_solutions(problems, self.column)
        if all(self.retry(Group(problem, ()), encode) is None for problem in problems):
            raise DataError(
                f"max_prompt_tokens={self.max_prompt_tokens}: no training problem's prompt with a hint is "
                "that short; write a larger scale.max_prompt_tokens, or a shorter text for data.hint"
            )

    def retry(self, group: Group, encode: Encode) -> tuple[float, array[int]] | None:
        """Returns the next share for a group and its prompt with the hint; None if the group has a right
        answer, its problem has no solution, the largest hint did not help, or the prompt would be too long.
        """
        share = next((share for share in self.shares if share > group.hint), None)
        texts = solutions(group.problem, self.column)
        if share is None or not texts or any(sample.score.value > 0 for sample in group.samples):
            return None
        shown = texts[0][: round(len(texts[0]) * share)]
        # The hint goes in last, so that a placeholder in a problem's text stays as it is.
        parts = self.template.split(HINT)
        text = shown.join(part.replace(PLACEHOLDER, group.problem.prompt) for part in parts)
        prompt = encode(replace(group.problem, prompt=text))
        return (share, prompt) if len(prompt) <= self.max_prompt_tokens else None
