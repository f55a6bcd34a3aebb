"""The language of the sums: guesses are wrong, and calls of the calculator have to be written correctly.

    prompt    347+286=
    response  812#                      a guess
              [347+286]633.633#         a call, the calculator's `633.`, and its result once more
              [34+286]!812#             a call that it cannot read, its `!`, and another try

The demonstrations mostly guess, at random: they teach no sums. Some call the calculator but only half know
how: a digit of the call may be wrong, or a character be left out, and so may a digit of the copied result.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import cache
from typing import Literal

from bapo_lightning.system.values import Count
from bapo_lightning.tiny_worlds.sums.calculator import CALL, END_OF_CALL, END_OF_RESULT, ERROR, answer_to
from bapo_lightning.types import Problem

SOURCE = "sums"
DIGITS = "0123456789"
END_MARK = "#"
CHARACTERS = DIGITS + "+=" + CALL + END_OF_CALL + END_OF_RESULT + ERROR + END_MARK

Split = Literal["train", "validation"]


@dataclass(frozen=True, slots=True)
class Sums:
    """The constants of the task; probabilities are for the demonstrations."""

    smallest_term: int = 100
    largest_term: int = 499  # sums then have three digits too, so that they are copied from a fixed distance
    train_problems: int = 20_000
    validation_problems: int = 1_000
    seed: int = 2718
    call: float = 0.15  # probability that a turn calls the calculator and does not guess
    unreadable: float = 0.1  # probability that a call omits one of its characters
    slip: float = 0.15  # probability that a digit of a readable call, or of a copied result, is wrong


@cache
def _terms(world: Sums) -> list[tuple[int, int]]:
    count = world.largest_term - world.smallest_term + 1
    chosen = random.Random(world.seed).sample(
        range(count * count), world.train_problems + world.validation_problems
    )
    return [(world.smallest_term + place // count, world.smallest_term + place % count) for place in chosen]


def sum_problems(split: Split, limit: Count | None = None, world: Sums = Sums()) -> list[Problem]:
    """Returns the first `limit` problems of a split in a fixed, shuffled order; splits share no problem."""
    terms, held_out = _terms(world), world.validation_problems
    chosen = terms[:held_out] if split == "validation" else terms[held_out:]
    return [
        Problem(
            id=f"{SOURCE}/{first}+{second}",
            prompt=f"{first}+{second}=",
            answer=str(first + second),
            source=SOURCE,
            metadata={"solution": str(first + second)},  # for methods that give hints
        )
        for first, second in chosen[:limit]
    ]


def demonstration(problem: Problem, generator: random.Random, world: Sums = Sums()) -> list[str]:
    """Returns one noisy conversation about `problem`: turns of the policy, with feedback between them."""
    pieces = []
    while generator.random() < world.call:
        call = _call(problem.prompt.rstrip("="), generator, world)
        feedback = answer_to(call)
        pieces += [call, feedback]
        if feedback != ERROR:
            result = _slipped(feedback.rstrip(END_OF_RESULT), generator, world)
            return [*pieces, result + END_MARK]
    guess = generator.randint(2 * world.smallest_term, 2 * world.largest_term)
    return [*pieces, f"{guess}{END_MARK}"]


def _call(terms: str, generator: random.Random, world: Sums) -> str:
    if generator.random() < world.unreadable:
        place = generator.randrange(len(terms))
        terms = terms[:place] + terms[place + 1 :]
    else:
        terms = _slipped(terms, generator, world)
    return f"{CALL}{terms}{END_OF_CALL}"


def _slipped(text: str, generator: random.Random, world: Sums) -> str:
    if generator.random() >= world.slip:
        return text
    place = generator.choice([place for place, character in enumerate(text) if character in DIGITS])
    digit = generator.choice(DIGITS.replace(text[place], ""))
    return text[:place] + digit + text[place + 1 :]
