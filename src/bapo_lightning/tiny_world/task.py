"""The toy language: two-digit addition whose answers are checked by subtraction, and overthink when the check fails.

    prompt    37+85=
    response  123-85=38,123-85=38;122-85=37.122#      attempts separated by `,` `;` `:`, then `.`, the last value, `#`

Demonstrations are noisy on purpose: the value of an attempt may be wrong. Its check shows that, since subtracting the second
term does not give the first one back, so another attempt follows, which often repeats the mistake. A response that has gone
astray therefore rambles until the token limit cuts it, as long-thinking models do: wrong answers are longer than right ones.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Literal

from bapo_lightning.types import Problem

SOURCE = "tiny_world"
SEPARATORS = ",;:"
FINAL_MARK = "."
END_MARK = "#"
CHARACTERS = "0123456789+-=" + SEPARATORS + FINAL_MARK + END_MARK

Split = Literal["train", "validation"]


@dataclass(frozen=True, slots=True)
class TinyWorld:
    """Every constant of the task; probabilities refer to the demonstrations."""

    smallest_term: int = 10
    largest_term: int = 99
    validation_problems: int = 900
    split_seed: int = 2718
    response_tokens: int = 30  # a response is cut here, the end mark included
    slip: float = 0.6  # the value of a fresh attempt is wrong
    repeat: float = 0.8  # an attempt after a failed check repeats the failed one word for word
    again_after_pass: float = 0.1  # one more attempt follows a check that passed
    again_after_failure: float = 0.97  # one more attempt follows a check that failed
    slips: tuple[int, ...] = (-10, -1, 1, 10)  # what a slip adds to the sum, equally likely


def tiny_problems(split: Split, limit: int | None = None, world: TinyWorld = TinyWorld()) -> list[Problem]:
    """Problems of one split in a fixed, shuffled order, the first `limit` of them; the two splits share no problem."""
    terms = range(world.smallest_term, world.largest_term + 1)
    pairs = [(first, second) for first in terms for second in terms]
    random.Random(world.split_seed).shuffle(pairs)
    chosen = pairs[: world.validation_problems] if split == "validation" else pairs[world.validation_problems :]
    return [
        Problem(id=f"{SOURCE}/{first}+{second}", prompt=f"{first}+{second}=", answer=str(first + second), source=SOURCE)
        for first, second in chosen[:limit]
    ]


def demonstration(problem: Problem, generator: random.Random, world: TinyWorld = TinyWorld()) -> str:
    """One noisy response to `problem`, at most `world.response_tokens` characters, the end mark included unless cut."""
    first, second = (int(term) for term in problem.prompt.rstrip("=").split("+"))
    value = _value(first + second, generator, world)
    text = _attempt(value, second)
    while len(text) < world.response_tokens:
        passed = value == first + second
        if generator.random() >= (world.again_after_pass if passed else world.again_after_failure):
            text += f"{FINAL_MARK}{value}{END_MARK}"
            break
        if passed or generator.random() >= world.repeat:
            value = _value(first + second, generator, world)
        text += f"{generator.choice(SEPARATORS)}{_attempt(value, second)}"
    return text[: world.response_tokens]


def _attempt(value: int, second: int) -> str:
    return f"{value}-{second}={value - second}"


def _value(total: int, generator: random.Random, world: TinyWorld) -> int:
    return total + generator.choice(world.slips) if generator.random() < world.slip else total
