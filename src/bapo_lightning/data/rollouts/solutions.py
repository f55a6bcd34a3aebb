"""Solutions in a problem's metadata: whole answers of an expert, or hints at one.

A solution is a text, or a list of texts, in a column that a table keeps (`mapping.keep`).
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Annotated, Any

from annotated_types import MinLen

from bapo_lightning.data.problems.prompts import PLACEHOLDER, Encode
from bapo_lightning.data.rollouts.rules import GroupRule
from bapo_lightning.data.run_facts import RunFacts
from bapo_lightning.errors import DataError
from bapo_lightning.types import NO_VERSION, FinishReason, Group, Origin, Problem, Rollout, Segment
from bapo_lightning.values import Advice, Count, Share, Size

HINT = "{hint}"


def solutions(problem: Problem, column: str) -> list[str]:
    """Returns the solutions in a column of the problem's metadata, without empty ones."""
    cell = problem.metadata.get(column)
    return [text for text in (cell if isinstance(cell, list) else [cell]) if isinstance(text, str) and text]


def require_solutions(problems: Iterable[Problem], column: str) -> None:
    """Raises DataError when no problem has a solution in the column."""
    if not any(solutions(problem, column) for problem in problems):
        raise DataError(
            f"column={column}: no training problem has a text in that column of its metadata; keep it, as in "
            f"data.train.mapping.keep=[{column}], or name another one"
        )


@dataclass(frozen=True)
class ExpertTraces(GroupRule):
    """Puts answers of an expert into the group of their problem, in the place of sampled ones, as LUFFY does
    (arXiv 2504.14945).
    """

    column: str = "solution"  # of the problem's metadata
    count: Count = 1  # answers in a group, as far as there are any; the paper: 1 of 8

    @staticmethod
    def run_problems(options: Mapping[str, Any], run: RunFacts) -> Iterator[str]:
        """Yields that the experts' answers leave no room for the policy's."""
        if options["count"] >= run.group_size:
            yield (
                f"count={options['count']} leaves none of scale.group_size={run.group_size} answers to the "
                "policy; write count=1"
            )

    def check(self, problems: Sequence[Problem], encode: Encode) -> None:
        """Raises DataError if no problem has an answer."""
        require_solutions(problems, self.column)

    def open(self, tokenizer: Any, problem: Problem, start: Rollout) -> list[Rollout]:
        """Returns answers to the prompt of `start`, tokenized and ended as the policy's own would be."""
        texts = solutions(problem, self.column)[: self.count]
        found = []
        for text in texts:
            token_ids = [*tokenizer.encode(text, add_special_tokens=False), tokenizer.eos_token_id]
            segment = Segment(array("i", token_ids), array("f", [0.0] * len(token_ids)), NO_VERSION)
            found.append(Rollout(start.prompt_ids, (segment,), FinishReason.STOP, Origin.EXPERT))
        return found


Shares = Annotated[
    tuple[Share, ...], MinLen(1), Advice("must be rising shares of the solution, e.g. [0.25, 0.5, 0.75]")
]


@dataclass(frozen=True)
class Hints(GroupRule):
    """Shows a part of the solution in the prompt of a group without a right answer, and more of it if that
    does not help, as GHPO does (arXiv 2507.10628). The group is sampled again, and trained on with the hint
    in its prompt.

    The paper's start with hints for all problems in the first updates is left out.
    """

    max_prompt_tokens: Size  # a longer prompt gets no hint; the authors cut its beginning off
    template: str  # of the problem with the hint; the authors': conf/data/base.yaml
    column: str = "solution"  # of the problem's metadata
    shares: Shares = (0.25, 0.5, 0.75)  # of its characters, one after another

    @staticmethod
    def problems(options: Mapping[str, Any]) -> Iterator[str]:
        """Yields what is wrong with options of the right types."""
        shares, template = options["shares"], options["template"]
        if not all(smaller < larger for smaller, larger in pairwise(shares)):
            yield f"shares={list(shares)} must rise: each hint shows more; write [0.25, 0.5, 0.75]"
        if not all(part in template for part in (PLACEHOLDER, HINT)):
            yield f"template={template!r} must show {PLACEHOLDER} and {HINT}, where their texts go"

    def check(self, problems: Sequence[Problem], encode: Encode) -> None:
        """Raises DataError if no problem has a solution, or none a short enough prompt with a hint."""
        require_solutions(problems, self.column)
        if all(self.again(Group(problem, ()), encode) is None for problem in problems):
            raise DataError(
                f"max_prompt_tokens={self.max_prompt_tokens}: no training problem's prompt with a hint is "
                "that short; write a larger scale.max_prompt_tokens, or a shorter text for data.hint"
            )

    def again(self, group: Group, encode: Encode) -> tuple[float, array[int]] | None:
        """Returns the next share for a group and its prompt with the hint; None if the group has a right
        answer, its problem no solution, the largest hint did not help, or the prompt would be too long.
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
