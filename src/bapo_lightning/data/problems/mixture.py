"""Several problem sets as one training set, with or without weights.

Without weights the sets are joined: an epoch holds every problem of all sets once, in one shuffled order.

With weights each set has its own epochs, each with every problem once in its own order. The next problem
comes from the set that is furthest behind its share of the draws so far; chance plays no part. After n draws
each set is less than one problem per set away from its share of n, for every n. A small set with a large
weight starts its next epoch sooner.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bapo_lightning.system.errors import ConfigError, DataError
from bapo_lightning.system.values import Positive
from bapo_lightning.types import Problem


@dataclass(frozen=True, slots=True)
class Mixing:
    """Set of each problem, and each set's share of the draws."""

    set_of: Mapping[str, str]  # name of the set by problem id
    shares: Mapping[str, float]  # add up to 1


class Mixture(list[Problem]):
    """All problems of the sets, one set after another; `mixing` holds the weights if there are any."""

    def __init__(self, parts: Mapping[str, Sequence[Problem]], mixing: Mixing | None) -> None:
        super().__init__(problem for part in parts.values() for problem in part)
        self.parts, self.mixing = parts, mixing


def mixture(sets: Mapping[str, Sequence[Problem]], weights: Mapping[str, Positive] | None = None) -> Mixture:
    """Mixes problem sets, by name, with a weight of each set in any unit (`_target_` of a training set).

    Raises ConfigError: there are no sets, or the weights do not name each of them; DataError: two sets hold
    problems of the same id.
    """
    wrong = []
    if not sets:
        wrong.append("data.train is a mixture of no sets; write data.train.sets: {NAME: {_target_: ...}}")
    elif weights is not None:
        known = ", ".join(sets)
        unknown = [name for name in weights if name not in sets]
        missing = [name for name in sets if name not in weights]
        wrong += [f"data.train.weights.{name} names no set; the sets are {known}" for name in unknown]
        wrong += [f"data.train.weights has no {name}; give every set a weight, or none" for name in missing]
    if wrong:
        raise ConfigError(wrong)
    set_of: dict[str, str] = {}
    for name, problems in sets.items():
        for problem in problems:
            if set_of.setdefault(problem.id, name) != name:
                raise DataError(
                    f"sets {set_of[problem.id]} and {name} of data.train both hold {problem.id}; give one of "
                    "them another name"
                )
    if weights is None:
        return Mixture(sets, None)
    total = math.fsum(weights.values())
    return Mixture(sets, Mixing(set_of, {name: weights[name] / total for name in sets}))


def furthest_behind(taken: Mapping[str, int], shares: Mapping[str, float]) -> str:
    """Returns the set of the next problem, by draws so far and shares; the first of several equal ones."""
    draws = sum(taken.values()) + 1
    return max(shares, key=lambda name: shares[name] * draws - taken[name])
