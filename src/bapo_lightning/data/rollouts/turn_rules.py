"""Rules for the turns of a conversation: additions to its reward, and whether it is trained on."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from bapo_lightning.data.rollouts.rules import GroupRule
from bapo_lightning.data.run_facts import RunFacts
from bapo_lightning.system.values import Count, CountOrZero, SignedFactor
from bapo_lightning.types import FinishReason, Rollout, Sample, ScoreStatus


def needs_turns(option: str, run: RunFacts) -> Iterator[str]:
    """Yields a message if no environment answers the policy, for an `option` about turns; "": for all."""
    if run.environment is None:
        yield (
            f"{option} without an environment: a response is one turn, and calls nothing; write "
            "environment=NAME, or another algorithm"
        )


class TurnShaping(GroupRule):
    """A rule that changes the reward by events in the turns of a conversation."""

    @staticmethod
    def run_problems(options: Mapping[str, Any], run: RunFacts) -> Iterator[str]:
        """Yields a message if there are no turns."""
        yield from needs_turns("", run)


@dataclass(frozen=True)
class TurnFormatReward(TurnShaping):
    """A bonus for conversations that keep to the format: they ended on their own, within all limits, with an
    answer or a call in every turn, and no call failed.

    A positive bonus is added if the format is kept, a negative bonus if it is not, as in
    `rewards.format_reward`.
    """

    bonus: SignedFactor = 0.1

    def shape(self, rollout: Rollout, version: int) -> float:
        """Returns the bonus or 0, whatever the policy version."""
        failed = any(reply.is_void or reply.errors for reply in rollout.replies)
        kept = rollout.finish is FinishReason.STOP and not failed
        return self.bonus if kept == (self.bonus > 0) else 0.0


@dataclass(frozen=True)
class SampleFilter(GroupRule):
    """Decides whether a sample is trained on; each option leaves out some samples."""

    # Samples with a turn that has neither call nor answer (arXiv 2509.02479). A turn that a limit cut off
    # counts as void unless the verifier found an answer in it.
    void_turns: bool = False
    unanswered: bool = False  # samples in which the verifier finds no final answer
    cut: bool = False  # samples that a limit of tokens or turns ended
    repeats: CountOrZero = 0  # samples with so many copies of one n-gram of tokens; 0: off
    ngram: Count = 20  # n, in tokens of one turn

    @staticmethod
    def problems(options: Mapping[str, Any]) -> Iterator[str]:
        """Yields conflicts between the options."""
        if not any(options[name] for name in ("void_turns", "unanswered", "cut", "repeats")):
            yield "void_turns, unanswered, cut and repeats are all off; write null in the place of the rule"
        if options["repeats"] == 1:
            yield "repeats=1 leaves out every response of ngram tokens; write repeats=10"

    @staticmethod
    def run_problems(options: Mapping[str, Any], run: RunFacts) -> Iterator[str]:
        """Yields a message if there are no turns that could be void."""
        if options["void_turns"]:
            yield from needs_turns("void_turns", run)

    def keeps(self, sample: Sample) -> bool:
        """Returns whether the sample is trained on."""
        is_unanswered = sample.score.status is ScoreStatus.UNPARSABLE
        return not (
            (self.unanswered and is_unanswered)
            or (self.cut and sample.rollout.finish is FinishReason.LENGTH)
            or (self.void_turns and has_void_turn(sample.rollout, is_unanswered))
            or (self.repeats and most_repeated(sample.rollout.turns, self.ngram) >= self.repeats)
        )


def has_void_turn(rollout: Rollout, is_unanswered: bool) -> bool:
    """Returns whether a turn, also one that was cut off, had neither a call nor an answer."""
    is_cut_off = rollout.finish is FinishReason.LENGTH and len(rollout.turns) > len(rollout.replies)
    return any(reply.is_void for reply in rollout.replies) or (is_cut_off and is_unanswered)


def most_repeated(turns: Iterable[array[int]], ngram: int) -> int:
    """Returns how often the most frequent n-gram of tokens occurs in the turns; none spans two turns."""
    counts: Counter[bytes] = Counter()
    for turn in turns:
        ids, size = turn.tobytes(), turn.itemsize
        counts.update(ids[size * first : size * (first + ngram)] for first in range(len(turn) - ngram + 1))
    return max(counts.values(), default=0)
