"""LUFFY: adds answers of an expert, whose unlikely tokens count more (arXiv 2504.14945)."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from bapo_lightning.data.problems.prompts import Encode
from bapo_lightning.data.problems.solutions import require_solutions, solutions
from bapo_lightning.data.rollouts.rules import GroupRule
from bapo_lightning.data.run_facts import RunFacts
from bapo_lightning.objectives.token_table import TokenTable
from bapo_lightning.system.values import Count, Positive
from bapo_lightning.types import NO_VERSION, FinishReason, Origin, Problem, Rollout, Segment


def luffy(table: TokenTable, gamma: Positive = 0.1) -> Tensor:
    """Returns f(p) A for the tokens of an expert and r A for all others, [N], where f(p) = p / (p + gamma).

    The behaviour log-prob of an expert's token is 0 by definition, so that p is its ratio. The slope of f in
    log p is gamma p / (p + gamma)^2: largest at p = gamma, while r alone would neglect tokens that the policy
    finds unlikely. Nothing is clipped, as in the authors' runs (`loss_remove_clip`); a policy that is several
    updates off-policy may need bounds, which this objective does not have. The authors' entropy bonus of
    0.001 is left out.
    """
    ratio = table.ratio
    return (ratio / (ratio + gamma)).where(table.origin == Origin.EXPERT, ratio) * table.advantage


@dataclass(frozen=True)
class ExpertTraces(GroupRule):
    """Puts answers of an expert into the group of their problem, in place of sampled answers."""

    column: str = "solution"  # of the problem's metadata
    count: Count = 1  # answers in a group, if the problem has so many; the paper: 1 of 8

    @staticmethod
    def run_problems(options: Mapping[str, Any], run: RunFacts) -> Iterator[str]:
        """Yields a message if the expert's answers leave no room for the policy's."""
        if options["count"] >= run.group_size:
            yield (
                f"count={options['count']} leaves none of scale.group_size={run.group_size} answers to the "
                "policy; write count=1"
            )

    def check(self, problems: Sequence[Problem], encode: Encode) -> None:
        """Raises DataError if no problem has an answer."""
        require_solutions(problems, self.column)

    def open(self, tokenizer: Any, problem: Problem, start: Rollout) -> list[Rollout]:
        """Returns answers to the prompt of `start`, tokenized and ended like the policy's own answers."""
        texts = solutions(problem, self.column)[: self.count]
        traces = []
        for text in texts:
            token_ids = [*tokenizer.encode(text, add_special_tokens=False), tokenizer.eos_token_id]
            segment = Segment(array("i", token_ids), array("f", [0.0] * len(token_ids)), NO_VERSION)
            traces.append(Rollout(start.prompt_ids, (segment,), FinishReason.STOP, Origin.EXPERT))
        return traces
