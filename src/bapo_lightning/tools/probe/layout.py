"""The tokens that are compared, in one order for the server and for all weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from bapo_lightning.system.errors import EngineError
from bapo_lightning.tools.probe.client import LogProbs

Numbers = np.ndarray[tuple[int], np.dtype[np.float64]]  # [N] log-probs in nats, one per token
Mask = np.ndarray[tuple[int], np.dtype[np.bool_]]  # [N]


@dataclass(frozen=True)
class PlacedScores:
    """A prompt with its sampled tokens."""

    token_ids: tuple[int, ...]
    prompt_length: int
    has_prompt: bool  # whether the server scored the prompt


@dataclass(frozen=True)
class TokenLayout:
    """Tokens of several sequences: for each the prompt's from the second on, then the sampled ones."""

    sequences: tuple[PlacedScores, ...]
    temperature: float  # for log-probs of sampled tokens
    prompt_temperature: float = 1.0  # for log-probs of prompts

    @cached_property
    def places(self) -> list[tuple[int, int, bool]]:
        """Sequence, place in it and whether it was sampled, for each token."""
        return [
            (number, place, place >= each.prompt_length)
            for number, each in enumerate(self.sequences)
            for place in range(1 if each.has_prompt else each.prompt_length, len(each.token_ids))
        ]

    @cached_property
    def clusters(self) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        """[N] the sequence of each token: rounding at one place affects the following ones."""
        return np.array([number for number, _, _ in self.places])

    @cached_property
    def is_sampled(self) -> Mask:
        """[N] whether a token was sampled."""
        return np.array([sampled for _, _, sampled in self.places])

    def at(self, part: str, temperature: float) -> TokenLayout:
        """The same with log-probs of "prompt" or "sampled" tokens at another temperature."""
        if part == "prompt":
            return replace(self, prompt_temperature=temperature)
        return replace(self, temperature=temperature)

    def first(self, count: int) -> TokenLayout:
        """The tokens of the first sequences."""
        return replace(self, sequences=self.sequences[:count])


def compared(
    prompts: Sequence[Sequence[int]], answers: Sequence[LogProbs], temperature: float
) -> tuple[TokenLayout, Numbers]:
    """Returns the tokens that the server gave log-probs for, and these. Raises EngineError for none."""
    sequences = tuple(
        PlacedScores((*prompt, *answer.sampled_ids), len(prompt), bool(answer.prompt))
        for prompt, answer in zip(prompts, answers, strict=True)
    )
    values = [value for answer in answers for value in (*answer.prompt, *answer.sampled)]
    if not values:
        raise EngineError(
            "the server gives no log-probs that can be compared: neither of the prompt (`echo` with "
            "`logprobs`) nor of sampled tokens with their numbers; start it with log-probs allowed"
        )
    return TokenLayout(sequences, temperature), np.array(values)
