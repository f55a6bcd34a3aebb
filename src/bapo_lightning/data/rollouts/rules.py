"""Rules of an algorithm for single groups, on their way from a problem to training (`algorithm.rules`).

    problem --open--> running --shape, keeps--> scored --again--> running, with another prompt
                                                  |
                                                  +--admits--> ready, or rejected

If generation continues during training, its thread calls them; in a stream a second thread calls `shape`
and `keeps`.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from bapo_lightning.data.problems.prompts import Encode
from bapo_lightning.system.errors import DataError
from bapo_lightning.types import Group, Problem, Rollout, Sample


class GroupRule:
    """A rule that changes nothing; subclasses override the methods that they need."""

    max_rounds: int = 1  # of generation per rollout batch, see `admits`

    @classmethod
    def has(cls, method: str) -> bool:
        """Returns whether the rule overrides a method."""
        return getattr(cls, method) is not getattr(GroupRule, method)

    def check(self, problems: Sequence[Problem], encode: Encode) -> None:
        """Raises DataError, beginning with an option, if the problems have no field that the rule needs."""

    def open(self, tokenizer: Any, problem: Problem, start: Rollout) -> list[Rollout]:
        """Returns finished rollouts to `start`'s prompt, first in the group; too long ones are left out."""
        return []

    def shape(self, rollout: Rollout, version: int) -> float:
        """Returns an addition to the reward, at policy `version`. Held-out answers get none."""
        return 0.0

    def keeps(self, sample: Sample) -> bool:
        """Returns whether a sample with its final reward is trained on; else only the baseline counts it."""
        return True

    def retry(self, group: Group, encode: Encode) -> tuple[float, array[int]] | None:
        """Returns, for a scored group, the share of the solution that its next prompt shows, and the token
        ids of that prompt; None if the group is not sampled again.
        """
        return None

    def admits(self, group: Group) -> bool:
        """Returns whether a scored group is trained on. Fresh groups replace rejected ones for at most
        `max_rounds` rounds of generation per rollout batch; after that, rejected groups fill the batch with
        advantages of zero, so that its size never changes.
        """
        return True

    def state_dict(self) -> dict[str, Any]:
        """Returns the rule's entries in a checkpoint, as primitives and tensors."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores them."""


@dataclass(frozen=True)
class Rules:
    """Combines the rules of a run, by name and in their order."""

    by_name: Mapping[str, GroupRule] = field(default_factory=dict)

    @property
    def max_rounds(self) -> int:
        """Largest number of rounds of generation per rollout batch."""
        return max((rule.max_rounds for rule in self._rules), default=1)

    def check(self, problems: Sequence[Problem], encode: Encode) -> None:
        """Raises DataError, with the key of a rule, if the problems have no field that the rule needs."""
        for name, rule in self.by_name.items():
            try:
                rule.check(problems, encode)
            except DataError as error:
                raise DataError(f"algorithm.rules.{name}.{error}") from None

    def open(self, tokenizer: Any, problem: Problem, start: Rollout) -> list[Rollout]:
        """Returns the finished rollouts of all rules."""
        return [rollout for rule in self._rules for rollout in rule.open(tokenizer, problem, start)]

    def applied(self, sample: Sample, version: int) -> Sample:
        """Returns the sample with all additions to its reward, trained on only if every rule keeps it."""
        reward = sample.reward
        for rule in self._rules:
            reward += rule.shape(sample.rollout, version)
        shaped = sample if reward == sample.reward else replace(sample, reward=reward)
        is_trained = all(rule.keeps(shaped) for rule in self._rules)
        return shaped if is_trained else replace(shaped, is_trained=False)

    def retry(self, group: Group, encode: Encode) -> tuple[float, array[int]] | None:
        """Returns the result of the first rule that samples the group again."""
        results = (rule.retry(group, encode) for rule in self._rules)
        return next((result for result in results if result is not None), None)

    def admits(self, group: Group) -> bool:
        """Returns whether every rule admits the group."""
        return all(rule.admits(group) for rule in self._rules)

    def state_dict(self) -> dict[str, Any]:
        """Returns the states of rules that have one, by name."""
        return {name: state for name, rule in self.by_name.items() if (state := rule.state_dict())}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores them."""
        for name, rule_state in state.items():
            self.by_name[name].load_state_dict(rule_state)

    @property
    def _rules(self) -> Sequence[GroupRule]:
        return tuple(self.by_name.values())
