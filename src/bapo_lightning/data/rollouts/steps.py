"""Steps of responses: where they end, and what a critic says of each.

    prompt | first step | second step | last step, end token
           |            |             |                     |
        V(s_0)       V(s_1)        V(s_2)                outcome

The advantage of step k is V(s_k+1) - V(s_k), where the outcome takes the place of the last value.
"""

from __future__ import annotations

import re
import time
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice, pairwise
from statistics import fmean
from typing import Any, Protocol

import numpy as np
import torch

from bapo_lightning.objectives.advantages.steps import step_advantages
from bapo_lightning.phases import phase
from bapo_lightning.types import Group, Rollout, Sample, Steps

Split = int | str  # so many tokens a step; or a regular expression that ends one


class Critic(Protocol):
    """Predicts outcomes of unfinished responses."""

    @property
    def split(self) -> Split:
        """How the responses that it was trained on were split."""
        ...

    def values(
        self,
        rollouts: Sequence[Rollout],
        states: Sequence[Sequence[int]],
        token_budget: int,
        device: torch.device,
    ) -> list[list[float]]:
        """Returns the expected outcome at each of the states of each rollout.

        Args:
            rollouts: any number of rollouts.
            states: positions, per rollout, of the last tokens of its prefixes, in prompt and response.
            token_budget: padded tokens that pass through the model at once.
            device: device of the model.
        """
        ...


@dataclass(eq=False)
class StepSplitter:
    """Splits responses into steps.

    A separator belongs to the step that it ends, with the whole token in which it ends. What follows the last
    one without any text, such as an end token, belongs to the last step. Tokens are decoded one by one.
    """

    tokenizer: Any  # a transformers tokenizer
    split: Split
    _texts: dict[int, str] = field(default_factory=dict, init=False)

    def __call__(self, token_ids: Sequence[int]) -> array[int]:
        """Returns the number of each token's step, from 0 on."""
        if isinstance(self.split, int):
            return array("i", [position // self.split for position in range(len(token_ids))])
        texts = [self._text(token) for token in token_ids]
        whole, written = "".join(texts), np.cumsum([len(text) for text in texts])
        ends = [found.end() for found in re.finditer(self.split, whole) if found.group()]
        last = np.unique(np.searchsorted(written, ends))  # token of each step
        last = last[written[last] < len(whole.rstrip())]  # but of the last one
        return array("i", np.searchsorted(last, np.arange(len(texts))).tolist())

    def _text(self, token: int) -> str:
        if token not in self._texts:
            self._texts[token] = self.tokenizer.decode([token], skip_special_tokens=True)
        return self._texts[token]


def states_of(rollout: Rollout, numbers: Sequence[int]) -> list[int]:
    """Returns where prompt and response stand before each step: the positions of the last tokens before it.

    Args:
        rollout: finished rollout.
        numbers: number of each token's step.
    """
    start = len(rollout.prompt_ids)
    begins = [place for place, (before, own) in enumerate(pairwise(numbers), start) if own != before]
    return [start - 1, *begins]


@phase("valuing steps")
def with_step_advantages(
    critic: Critic,
    groups: Sequence[Group],
    tokenizer: Any,
    admits: Callable[[Group], bool],
    token_budget: int,
    device: torch.device,
) -> tuple[list[Group], dict[str, float]]:
    """Gives each step of the samples its advantage, and each sample the sum of them.

    Args:
        critic: predicts the verifier's scores.
        groups: groups of a rollout batch that enter training for the first time.
        tokenizer: tokenizer of the responses.
        admits: whether a group is trained on. Others fill up a batch, and stay as they are.
        token_budget: padded tokens that pass through the critic at once.
        device: device of the critic.

    Returns:
        The groups, and the metrics `critic/value`, `critic/brier` (both absent where no group is trained on)
        and `time/critic_seconds`.
    """
    start, splitter = time.perf_counter(), StepSplitter(tokenizer, critic.split)
    samples = [sample for group in groups if admits(group) for sample in group.samples]
    numbers = [splitter(sample.rollout.response_ids) for sample in samples]
    rollouts = [sample.rollout for sample in samples]
    states = [states_of(*pair) for pair in zip(rollouts, numbers, strict=True)]
    values = critic.values(rollouts, states, token_budget, device)
    pairs = iter(map(_with_steps, samples, numbers, values))
    found = [_valued(group, pairs) if admits(group) else group for group in groups]
    measured = {"time/critic_seconds": time.perf_counter() - start}
    if samples:
        errors = [
            (value - sample.score.value) ** 2
            for sample, own in zip(samples, values, strict=True)
            for value in own
        ]
        measured |= {"critic/value": fmean(own[0] for own in values), "critic/brier": fmean(errors)}
    return found, measured


def _with_steps(sample: Sample, numbers: array[int], values: Sequence[float]) -> tuple[Sample, float]:
    """Returns the sample with its steps, and the sum of their advantages."""
    advantages = step_advantages(values, sample.score.value)
    each = array("f", [advantages[number] for number in numbers])
    return replace(sample, steps=Steps(numbers, each)), sum(advantages)


def _valued(group: Group, pairs: Iterator[tuple[Sample, float]]) -> Group:
    """Returns the group with the next samples and advantages of `pairs`."""
    samples, advantages = zip(*islice(pairs, len(group.samples)), strict=True)
    return replace(group, samples=samples, advantages=advantages)
