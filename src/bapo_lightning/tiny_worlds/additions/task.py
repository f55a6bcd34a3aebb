"""The toy language: two-digit addition by responses that overthink, so that wrong ones are longer.

    prompt    37+85=
    response  112,122;122:122.122#   a value, re-checks after `,` `;` `:`, then `.`, the last value again, `#`

Demonstrations are noisy on purpose: a value may be wrong, and re-checks continue although they gain nothing.
A response that does not end in time is cut at the token limit and has no answer: as with long-thinking
models, most wrong answers are truncated rambling.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Literal

from bapo_lightning.system.values import Count
from bapo_lightning.types import Problem

SOURCE = "additions"
SEPARATORS = ",;:"
FINAL_MARK = "."
END_MARK = "#"
CHARACTERS = "0123456789+=" + SEPARATORS + FINAL_MARK + END_MARK

Split = Literal["train", "validation"]


@dataclass(frozen=True, slots=True)
class Additions:
    """The constants of the task; the probabilities are for the demonstrations."""

    smallest_term: int = 10
    largest_term: int = 99
    validation_problems: int = 900
    split_seed: int = 2718
    response_tokens: int = 32  # limit of a response's length, with the end mark
    slip: float = 0.05  # probability that a written value is wrong
    check_again: float = 0.94  # probability that one more re-check follows a written value
    slips: tuple[int, ...] = (-10, -1, 1, 10)  # differences of a wrong value from the sum, equally likely


def addition_problems(
    split: Split, limit: Count | None = None, world: Additions = Additions()
) -> list[Problem]:
    """Returns the first `limit` problems of a split in a fixed, shuffled order; splits share no problem."""
    terms = range(world.smallest_term, world.largest_term + 1)
    pairs = [(first, second) for first in terms for second in terms]
    random.Random(world.split_seed).shuffle(pairs)
    chosen = (
        pairs[: world.validation_problems] if split == "validation" else pairs[world.validation_problems :]
    )
    return [
        Problem(
            id=f"{SOURCE}/{first}+{second}",
            prompt=f"{first}+{second}=",
            answer=str(first + second),
            source=SOURCE,
            metadata={"solution": f"{first + second}{FINAL_MARK}{first + second}"},
        )
        for first, second in chosen[:limit]
    ]


def demonstration(problem: Problem, generator: random.Random, world: Additions = Additions()) -> str:
    """Returns one noisy response to `problem`, cut after `world.response_tokens` characters."""
    total = int(problem.answer)
    value = _value(total, generator, world)
    text = str(value)
    while len(text) < world.response_tokens:
        if generator.random() >= world.check_again:
            text += f"{FINAL_MARK}{value}{END_MARK}"
            break
        value = _value(total, generator, world)
        text += f"{generator.choice(SEPARATORS)}{value}"
    return text[: world.response_tokens]


def _value(total: int, generator: random.Random, world: Additions) -> int:
    return total + generator.choice(world.slips) if generator.random() < world.slip else total
