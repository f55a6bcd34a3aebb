"""Several problem sets as one training set, with or without weights.

Without weights the sets are one: an epoch holds every problem of all of them once, in one shuffled order.

With weights each set has epochs of its own, in each of which every problem of it is drawn once, in an order
of its own; which set the next problem comes from is decided by the numbers drawn so far, without chance: the
set that is furthest behind its share. After n draws a set has given its share of n to less than one problem
per set, whatever n is; a small set with a large weight is simply begun again sooner.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bapo_lightning.errors import ConfigError, DataError
from bapo_lightning.types import Problem


@dataclass(frozen=True, slots=True)
class Mixing:
    """Which set a problem belongs to, and the share of the draws that each set gives."""

    set_of: Mapping[str, str]  # name of the set by problem id
    shares: Mapping[str, float]  # add up to 1


class Mixture(list[Problem]):
    """All problems of the sets, one set after the other; `parts` are the sets and `mixing` their weights,
    None without any.
    """

    def __init__(self, parts: Mapping[str, Sequence[Problem]], shares: Mapping[str, float] | None) -> None:
        super().__init__(problem for part in parts.values() for problem in part)
        self.parts = dict(parts)
        set_of = {problem.id: name for name, part in parts.items() for problem in part}
        self.mixing = None if shares is None else Mixing(set_of, dict(shares))


def mixture(sets: Mapping[str, Sequence[Problem]], weights: Mapping[str, float] | None = None) -> Mixture:
    """Mix problem sets (`_target_` of a training set).

    Args:
        sets: by name.
        weights: of each set, in any unit; None: no weights.

    Raises:
        ConfigError: the weights do not fit the sets.
        DataError: two sets hold problems of the same id.
    """
    if not sets:
        raise ConfigError(
            ["data.train is a mixture of no sets; write data.train.sets: {NAME: {_target_: ...}}"]
        )
    if weights is not None:
        _check_weights(weights, list(sets))
    owner: dict[str, str] = {}
    for name, problems in sets.items():
        for problem in problems:
            if owner.setdefault(problem.id, name) != name:
                raise DataError(
                    f"sets {owner[problem.id]} and {name} of data.train both hold {problem.id}; give one of "
                    "them another name"
                )
    if weights is None:
        return Mixture(sets, None)
    total = math.fsum(weights.values())
    return Mixture(sets, {name: weights[name] / total for name in sets})


def furthest_behind(taken: Mapping[str, int], shares: Mapping[str, float]) -> str:
    """The set that the next problem comes from; among equals the first one.

    Args:
        taken: problems drawn of each set so far.
        shares: of each set.
    """
    draws = sum(taken.values()) + 1
    return max(shares, key=lambda name: shares[name] * draws - taken[name])


def _check_weights(weights: Mapping[str, float], names: list[str]) -> None:
    wrong = [
        f"data.train.weights.{name} weighs no set; there are {', '.join(names)}"
        for name in weights
        if name not in names
    ]
    wrong += [
        f"data.train.weights lacks {name}; give every set a weight, or none"
        for name in names
        if name not in weights
    ]
    wrong += [
        f"data.train.weights.{name}={weight} must be a positive number; to go without a set leave it out"
        for name, weight in weights.items()
        if isinstance(weight, bool) or not isinstance(weight, (int, float)) or not 0 < weight < math.inf
    ]
    if wrong:
        raise ConfigError(wrong)
