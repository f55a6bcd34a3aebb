"""An endless, shuffled stream of problems."""

from __future__ import annotations

import random
from collections.abc import Sequence
from hashlib import sha256
from typing import Any

from bapo_lightning.data.problems.mixture import Mixing, furthest_behind
from bapo_lightning.system.errors import DataError
from bapo_lightning.types import Problem, WorkItem

WHOLE = ""  # name of the only part of a stream without a mixing

Places = dict[str, tuple[int, int]]  # part -> epoch, and number of problems drawn in it


class ProblemStream:
    """Yields every problem once per epoch, in a new order for each epoch, drawn with the stream's own seed.

    With a mixing each of its sets has its own epochs, as described in `mixture`. Problems with too long
    prompts, `overlong`, are never drawn, but listed in the ledger. Raises DataError if there are no problems
    at all or in one set, or if two share an id.
    """

    def __init__(
        self,
        problems: Sequence[Problem],
        seed: int,
        overlong: Sequence[Problem] = (),
        mixing: Mixing | None = None,
    ) -> None:
        self._shares = {WHOLE: 1.0} if mixing is None else dict(mixing.shares)
        self._part_of = {} if mixing is None else mixing.set_of
        if not problems:
            raise DataError("the training set holds no problems")
        self._by_id = {problem.id: problem for problem in problems}
        if len(self._by_id) != len(problems):
            raise DataError(f"problem ids must be unique, got {len(problems)} problems with repeated ids")
        self._parts, self._overlong = self._divided(problems), self._divided(overlong)
        empty = [name for name, part in self._parts.items() if not part]
        if empty:
            raise DataError(
                f"no problem of {', '.join(empty)} in data.train is left after filters and prompt limit; "
                "change them, or leave it out"
            )
        self._seed = seed
        self._fingerprint = fingerprint(problems)
        self._go_to(dict.fromkeys(self._parts, (0, 0)))

    @property
    def places(self) -> Places:
        """Position in each part: epoch, and number of problems drawn in it."""
        return dict(self._places)

    def take(self, count: int) -> list[WorkItem]:
        """Draws the next `count` problems; a new epoch begins whenever the last is used up."""
        return [self._next() for _ in range(count)]

    def never_drawn_since(self, places: Places) -> list[WorkItem]:
        """Returns the problems with too long prompts, once for each epoch that began since then."""
        items = []
        for name, (now, position) in self._places.items():
            epoch, taken = places[name]
            epochs = range(epoch if taken == 0 else epoch + 1, now + (position > 0))
            items += [WorkItem(problem, which) for which in epochs for problem in self._overlong[name]]
        return items

    def problem(self, problem_id: str) -> Problem:
        """Returns the problem with this id. Raises DataError if the training set has none."""
        if problem_id not in self._by_id:
            raise DataError(
                f"a checkpoint holds rollouts of problem {problem_id!r}, which the training set does not "
                "have; was it changed?"
            )
        return self._by_id[problem_id]

    def describe(self) -> str:
        """Returns the position in words."""
        places = self._places.items()
        parts = (f"{name and f'{name}: '}epoch {epoch}, {number} drawn" for name, (epoch, number) in places)
        return f"data position ({'; '.join(parts)})"

    def state_dict(self) -> dict[str, Any]:
        """Returns the position, and a fingerprint of the training set."""
        return {
            "places": {name: list(place) for name, place in self._places.items()},
            "training_set": self._fingerprint,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continues from a saved position. Raises DataError if the training set has changed."""
        if state["training_set"] != self._fingerprint or set(state["places"]) != set(self._parts):
            raise DataError(
                "the training set differs from the checkpoint's: its file, a filter, or a validation set "
                "that an overlap filter compares with has changed; put it back, or begin a new run"
            )
        self._go_to({name: (epoch, position) for name, (epoch, position) in state["places"].items()})

    def _next(self) -> WorkItem:
        name, *others = self._parts
        if others:
            taken = {each: epoch * len(self._parts[each]) + n for each, (epoch, n) in self._places.items()}
            name = furthest_behind(taken, self._shares)
        epoch, position = self._places[name]
        if position == len(self._parts[name]):
            epoch, position = epoch + 1, 0
            self._orders[name] = self._epoch_order(name, epoch)
        self._places[name] = epoch, position + 1
        return WorkItem(self._parts[name][self._orders[name][position]], epoch)

    def _go_to(self, places: Places) -> None:
        self._places = dict(places)
        self._orders = {name: self._epoch_order(name, epoch) for name, (epoch, _) in places.items()}

    def _divided(self, problems: Sequence[Problem]) -> dict[str, list[Problem]]:
        parts: dict[str, list[Problem]] = {name: [] for name in self._shares}
        for problem in problems:
            parts[self._part_of.get(problem.id, WHOLE)].append(problem)
        return parts

    def _epoch_order(self, name: str, epoch: int) -> list[int]:
        order = list(range(len(self._parts[name])))
        random.Random(f"{self._seed}/{name}/{epoch}" if name else f"{self._seed}/{epoch}").shuffle(order)
        return order


def fingerprint(problems: Sequence[Problem]) -> str:
    """Returns a digest of the problems and their order."""
    digest = sha256()
    for problem in problems:
        text = f"{problem.id}\0{problem.prompt}\0{problem.answer}\0"
        digest.update(text.encode("utf-8", "surrogatepass"))
    return digest.hexdigest()
