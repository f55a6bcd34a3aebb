"""Numbers that rollouts give for the tokens of a table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from torch import Tensor

from bapo_lightning.data.batches.model_input import on_device
from bapo_lightning.objectives.token_table import TokenTable
from bapo_lightning.types import Rollout

Run = tuple[int, int]  # a number, and how many sampled tokens in a row have it


def context_lengths(rollouts: Sequence[Rollout], tokens: TokenTable) -> Tensor:
    """Returns the number of tokens of prompt, feedback and response before each token, [N]; arguments as in
    `numbers_of_tokens`.
    """
    unsampled = [list(_unsampled_before(rollout)) for rollout in rollouts]
    return numbers_of_tokens(unsampled, tokens) + tokens.position


def turn_numbers(rollouts: Sequence[Rollout], tokens: TokenTable) -> Tensor:
    """Returns the number of the turn that each token belongs to, counted from 0, [N]; arguments as in
    `numbers_of_tokens`.
    """
    runs = [[(number, len(turn)) for number, turn in enumerate(rollout.turns)] for rollout in rollouts]
    return numbers_of_tokens(runs, tokens)


def numbers_of_tokens(runs: Sequence[Sequence[Run]], tokens: TokenTable) -> Tensor:
    """Returns the number of each token, [N].

    Args:
        runs: for each rollout of all ranks' minibatch, in row order, its sampled tokens in order.
        tokens: token table of that minibatch, with `sequence` and `position`.
    """
    flat = np.array([run for own in runs for run in own], dtype=np.int64).reshape(-1, 2)
    starts = np.cumsum([0, *(sum(length for _, length in own) for own in runs)])
    device = tokens.sequence.device
    numbers = on_device(np.repeat(flat[:, 0], flat[:, 1]), device)
    return numbers[on_device(starts, device)[tokens.sequence] + tokens.position]


def _unsampled_before(rollout: Rollout) -> Iterator[Run]:
    before = len(rollout.prompt_ids)
    for segment in rollout.segments:
        if segment.is_feedback:
            before += len(segment.token_ids)
        else:
            yield before, len(segment.token_ids)
