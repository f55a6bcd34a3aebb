"""The language of the locks: one rare token decides, and wrong answers are longer throughout.

    prompt    37:4=        lock 37 on day 4
    response  k#           key k opens it: five tokens with the three that every answer begins with
              a;???????#   key a does not, and the search continues until it gives up

Every lock has a master key, which opens it on every day, and a popular key, which opens it on some days. The
demonstrations mostly use the popular key, so that a policy must find the master key of each lock on its own:
nothing carries over from lock to lock. Whether a key opens is learnt from the demonstrations too, so that
the length of an answer follows from its key; nothing rewards a shorter search.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import cache
from typing import Literal

from bapo_lightning.rewards.scores import UNPARSABLE, all_or_nothing, pairs_of
from bapo_lightning.system.values import Count
from bapo_lightning.types import Completion, FinishReason, Problem, Score

SOURCE = "locks"
KEYS = "abcdefghijklmnopqrstuvwxyz"
END_MARK = "#"
SEARCH = ";" + 7 * "?"
CHARACTERS = "0123456789:=;?" + KEYS + END_MARK

Split = Literal["train", "validation"]


@dataclass(frozen=True, slots=True)
class Locks:
    """The constants of the task; probabilities are for the demonstrations."""

    num_locks: int = 100
    num_days: int = 10
    validation_days: int = 2  # the last days of every lock are held out
    num_keys: int = 20
    popular_opens: float = 0.4  # share of the days on which a popular key opens
    popular: float = 0.6  # probability of the popular key
    master: float = 0.1  # probability of the master key; the others share the rest
    seed: int = 2718


@dataclass(frozen=True, slots=True)
class Lock:
    """The keys of one lock, and the days on which the popular one opens it."""

    master: str
    popular: str
    days: frozenset[int]

    def opens(self, key: str, day: int) -> bool:
        """Whether a key opens it on a day."""
        return key == self.master or (key == self.popular and day in self.days)

    def opening(self, day: int) -> list[str]:
        """The keys that open it on a day."""
        return sorted(key for key in (self.master, self.popular) if self.opens(key, day))


@cache
def all_locks(world: Locks = Locks()) -> tuple[Lock, ...]:
    """Returns the locks, the same for every run."""
    generator = random.Random(world.seed)
    locks = []
    for _ in range(world.num_locks):
        master, popular = generator.sample(KEYS[: world.num_keys], 2)
        days = [day for day in range(world.num_days) if generator.random() < world.popular_opens]
        locks.append(Lock(master, popular, frozenset(days)))
    return tuple(locks)


def lock_problems(split: Split, limit: Count | None = None, world: Locks = Locks()) -> list[Problem]:
    """Returns the first `limit` problems of a split in a fixed, shuffled order. Splits share locks, but no
    day: a policy that has found the master keys is right on days that it never saw.
    """
    return [_problem(number, day, world) for number, day in places_of(split, world)[:limit]]


def places_of(split: Split, world: Locks) -> list[tuple[int, int]]:
    """Locks and days of a split in a fixed, shuffled order."""
    first_held_out = world.num_days - world.validation_days
    days = range(first_held_out) if split == "train" else range(first_held_out, world.num_days)
    places = [(number, day) for number in range(world.num_locks) for day in days]
    random.Random(world.seed).shuffle(places)
    return places


def all_lock_problems(world: Locks = Locks()) -> list[Problem]:
    """Returns every lock on every day, the subject of the demonstrations."""
    return [
        _problem(number, day, world) for number in range(world.num_locks) for day in range(world.num_days)
    ]


def _problem(number: int, day: int, world: Locks) -> Problem:
    lock = all_locks(world)[number]
    text = f"{number:02d}:{day}"
    return Problem(
        id=f"{SOURCE}/{text}",
        prompt=f"{text}=",
        answer="".join(lock.opening(day)),
        source=SOURCE,
        metadata={"solution": lock.master},  # for methods that learn from an expert, or give hints
    )


def demonstration(problem: Problem, generator: random.Random, world: Locks = Locks()) -> str:
    """Returns one response to `problem`: a key drawn by these constants, and the text that follows it."""
    lock = all_locks(world)[int(problem.prompt.partition(":")[0])]
    point = generator.random()
    if point < world.popular:
        key = lock.popular
    elif point < world.popular + world.master:
        key = lock.master
    else:
        key = generator.choice([k for k in KEYS[: world.num_keys] if k not in (lock.popular, lock.master)])
    return f"{key}{'' if key in problem.answer else SEARCH}{END_MARK}"


def opened(problems: list[Problem], completions: list[Completion]) -> list[Score]:
    """Scores each completion against the problem at the same index: 1.0 if its key opens the lock.

    A response that was cut, or that is not a key with or without a search, is unparsable, value 0.0.
    """
    return [_verdict(problem, completion) for problem, completion in pairs_of(problems, completions)]


def _verdict(problem: Problem, completion: Completion) -> Score:
    key, rest = completion.text[:1], completion.text[1:]
    if completion.finish is not FinishReason.STOP or key not in {*KEYS} or rest not in ("", SEARCH):
        return UNPARSABLE
    return all_or_nothing(key in problem.answer and not rest, key)
