"""Steps of responses: their ends, and their contributions to a critic's values.

    prompt | first step | second step | last step, end token
           |            |             |                     |
        V(s_0)       V(s_1)        V(s_2)                outcome

The advantage of step k is V(s_k+1) - V(s_k), with the outcome in place of the last value.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np

from bapo_lightning.data.problems.prompts import decoded
from bapo_lightning.types import Rollout

Split = int | str  # number of tokens in a step, or a regular expression that ends a step


@dataclass(eq=False)
class StepSplitter:
    """Splits responses into steps.

    A separator belongs to the step that it ends, with the whole token in which it ends. Tokens without text
    after the last separator, such as an end token, belong to the last step. Tokens are decoded one by one.
    """

    tokenizer: Any  # a transformers tokenizer
    split: Split
    ends: tuple[int, ...] = ()  # tokens that end a response, which have no text
    _texts: dict[int, str] = field(default_factory=dict, init=False)

    def __call__(self, token_ids: Sequence[int]) -> array[int]:
        """Returns the number of each token's step, from 0 on."""
        if isinstance(self.split, int):
            return array("i", [position // self.split for position in range(len(token_ids))])
        texts = [self._text(token) for token in token_ids]
        whole, written = "".join(texts), np.cumsum([len(text) for text in texts])
        ends = [match.end() for match in re.finditer(self.split, whole) if match.group()]
        last = np.unique(np.searchsorted(written, ends))  # last token of each step
        last = last[written[last] < len(whole.rstrip())]  # except the last step
        return array("i", np.searchsorted(last, np.arange(len(texts))).tolist())

    def _text(self, token: int) -> str:
        if token not in self._texts:
            self._texts[token] = decoded(self.tokenizer, [[token]], self.ends)[0]
        return self._texts[token]


def states_of(rollout: Rollout, numbers: Sequence[int]) -> list[int]:
    """Returns the state before each step: the position of the last token before it, in prompt and response.
    `numbers` has the number of each token's step.
    """
    start = len(rollout.prompt_ids)
    begins = [place for place, (before, number) in enumerate(pairwise(numbers), start) if number != before]
    return [start - 1, *begins]


def step_advantages(values: Sequence[float], outcome: float) -> list[float]:
    """Returns A_k = V(s_k+1) - V(s_k) for each of K steps, with the outcome in place of V(s_K); they add up
    to outcome - V(s_0).

    This is Eq. 6 of arXiv 2412.18279 at beta = 0. The paper samples several next steps from each state and
    takes the mean of their values for V(s_k) (Eq. 13); a response has one, so the critic's own value is used.
    The `values` are V(s_0), ..., V(s_K-1) of the prompt and of each prefix that ends a step.
    """
    return [after - before for before, after in zip(values, [*values[1:], outcome], strict=True)]
