"""Rules for answers that come too late, as pure functions of one group or of a batch.

Two clocks, in policy versions: the *span* of an answer passes while it is generated, from its first token to
its end; the *age* of a token, from its sampling to its training. All answers of a group start together, so
at training their first tokens are equally old, and only spans and later tokens differ within a group.

    wait              no rule: generation starts nothing while a batch waits in the queue
    pace              a group starts only if it can be trained in time, and enters in order: `windowed_fifo`
    evict             too old at training: the group leaves; starts as `pace` plans: `stream`
    mask              too old at training: the tokens do not train (`stale_action=mask`)
    drop_rollout      span too long: the answer is cancelled, the group keeps the others (prime-rl #3313)
    withhold          span too long: the reward counts in the baseline, the tokens do not train (#2960)
    queue_drop        queue full: the group that came first leaves, whatever its age (Applied Compute)
    queue_drop_start  queue full: the group that started first leaves

Shapes: P groups, G answers, K decisions of an answer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import numpy as np
import torch
from torch import Tensor

Action = Literal[
    "wait", "pace", "evict", "mask", "drop_rollout", "withhold", "queue_drop", "queue_drop_start"
]
PLANNED = ("pace", "evict", "mask")  # starts are bounded by the age at training
BY_SPAN = ("drop_rollout", "withhold")
DROPS_FROM_QUEUE = ("queue_drop", "queue_drop_start")


def longest_span(bound: int) -> int:
    """Returns the largest span, half of the largest age: the other half is left for the queue."""
    return bound // 2


def kept(action: Action, bound: int, spans: np.ndarray, ages: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns whose reward counts in the baseline, bool [..., G], and which tokens train, bool [..., G, K].

    Args:
        action: the rule.
        bound: largest age, in versions.
        spans: of the answers, [..., G].
        ages: of the decisions at training, [..., G, K].
    """
    counted, trained = np.ones(spans.shape, bool), np.ones(ages.shape, bool)
    in_time = spans <= longest_span(bound)
    if action == "drop_rollout":
        counted = in_time
    if action in BY_SPAN:
        trained = trained & in_time[..., None]
    if action == "mask":
        trained = ages <= bound
    return counted, trained


def advantages_among(advantages: Callable[[Tensor], Tensor], rewards: Tensor, counted: Tensor) -> Tensor:
    """Returns advantages [P, G] relative to the counted answers of each group; 0 for the others.

    Args:
        advantages: rewards [p, g] -> advantages [p, g].
        rewards: [P, G].
        counted: bool [P, G], at least two in each group.
    """
    values = torch.zeros_like(rewards)
    for count in counted.sum(1).unique().tolist():
        rows = counted.sum(1) == count
        chosen = counted & rows.unsqueeze(1)
        values[chosen] = advantages(rewards[chosen].view(-1, count)).flatten()
    return values
