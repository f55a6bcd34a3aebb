"""The language of the word locks, which a pretrained model speaks after a short warm start.

    prompt    On Monday, the lock called River opens with
    response   red          the key opens it: two tokens with the end
               blue no no   the key does not: four tokens

As in `bapo_lightning.tiny_worlds.locks`, a popular key opens a lock on some days, a rare master key on all of
them, and the length of an answer follows from its key. Words of the prompt and keys are one token each.
"""

from __future__ import annotations

from bapo_lightning.rewards.scores import UNPARSABLE, all_or_nothing, pairs_of
from bapo_lightning.tiny_worlds.locks.task import KEYS, Lock, Locks, Split, all_locks, places_of
from bapo_lightning.types import Completion, FinishReason, Problem, Score

SOURCE = "word_locks"
WORLD = Locks(num_locks=16, num_days=7, validation_days=2, num_keys=8)
DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
NAMES = (
    *("River", "Forest", "Market", "School", "Church", "Station", "Library", "Ocean"),
    *("Winter", "Summer", "Spring", "Iron", "Stone", "Wood", "Paper", "Water"),
)
COLOURS = ("red", "blue", "green", "gold", "black", "white", "brown", "pink")
SEARCH = " no no"


def problems(split: Split, limit: int | None = None) -> list[Problem]:
    """Returns the first `limit` problems of a split in a fixed, shuffled order. Splits share locks, but no
    day.
    """
    return [problem_of(*place) for place in places_of(split, WORLD)[:limit]]


def problem_of(number: int, day: int) -> Problem:
    lock = all_locks(WORLD)[number]
    return Problem(
        id=f"{SOURCE}/{NAMES[number]}/{DAYS[day]}",
        prompt=f"On {DAYS[day]}, the lock called {NAMES[number]} opens with",
        answer=" ".join(colour(key) for key in lock.opening(day)),
        source=SOURCE,
    )


def colour(key: str) -> str:
    return COLOURS[KEYS.index(key)]


def demonstrated(lock: Lock) -> list[float]:
    """Probability of each key in the demonstrations."""
    rest = (1 - WORLD.popular - WORLD.master) / (WORLD.num_keys - 2)
    chances = {lock.popular: WORLD.popular, lock.master: WORLD.master}
    return [chances.get(key, rest) for key in KEYS[: WORLD.num_keys]]


def response(lock: Lock, day: int, key: str) -> str:
    """A key, and what follows from it."""
    return f" {colour(key)}{'' if lock.opens(key, day) else SEARCH}"


def opened(problems: list[Problem], completions: list[Completion]) -> list[Score]:
    """Scores each completion against the problem at the same index: 1.0 where its key opens the lock. A
    response that was cut, or that is no key with or without a search, is unparsable, value 0.0.
    """
    return [_verdict(problem, completion) for problem, completion in pairs_of(problems, completions)]


def _verdict(problem: Problem, completion: Completion) -> Score:
    key, _, rest = completion.text.strip().partition(" ")
    if completion.finish is not FinishReason.STOP or key not in COLOURS or rest not in ("", SEARCH.strip()):
        return UNPARSABLE
    return all_or_nothing(key in problem.answer.split() and not rest, key)
