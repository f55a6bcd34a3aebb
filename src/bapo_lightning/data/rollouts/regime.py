"""How stale the data may be when it is trained on (conf group `regime/`).

Symbols: P groups in a rollout batch, which is trained on for U = epochs * minibatches updates; N rollout
batches in the run; K segments at most in a rollout. The *clock* counts updates attempted; ages count policy
versions, which never run ahead of the clock.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

StaleAction = Literal["evict", "mask"]
ReusePriority = Literal["newest", "oldest", "reward_spread"]


@dataclass(frozen=True, slots=True)
class Regime:
    """What is generated when, and for how long it may be trained on. The default is synchronous replay of
    whole rollouts.
    """

    name: str
    epochs: int  # E: passes over each rollout batch
    minibatches: int  # M: optimizer updates in one pass
    max_new_tokens: int = 1  # longest response, over all its segments
    async_generation: bool = False  # generation goes on while training
    max_age: int | None = (
        None  # hard bound on the age of a trained token, in updates; None: `age_bound` derives it
    )
    stale_action: StaleAction = (
        "evict"  # what happens beyond it: to the whole group, or to the old tokens alone
    )
    partial_tokens: int | None = (
        None  # a rollout is stopped after so many tokens of a generation pass, and resumed; None: never
    )
    max_segments: int | None = None  # policy versions in one rollout
    reuse_share: float = 0.0  # of past groups in a rollout batch
    max_reuses: int = 0  # further rollout batches that a group may enter
    reuse_priority: ReusePriority = "newest"
    wait_warning_seconds: float = 300  # training says what it waits for when this is exceeded

    @property
    def updates_per_rollout_batch(self) -> int:
        """U, the paper's staleness: so many updates use one rollout batch."""
        return self.epochs * self.minibatches

    @property
    def is_partial(self) -> bool:
        """Whether rollouts are stopped and resumed."""
        return self.partial_tokens is not None

    @property
    def segments_bound(self) -> int:
        """K: passes that a rollout can need, since each but the last brings `partial_tokens` tokens, and at
        most `max_segments`.
        """
        if self.partial_tokens is None:
            return 1
        needed = math.ceil(self.max_new_tokens / self.partial_tokens)
        return needed if self.max_segments is None else min(needed, self.max_segments)

    @property
    def natural_age(self) -> int:
        """Largest age that synchronous generation can bring about by itself, in updates: (2K - 1) U - 1.

        At most P groups start in a pass, and never are more than K P in flight (running or ready). While a
        rollout makes its K passes at most (K - 1) P groups start after it, so at most K P - 1 + (K - 1) P
        groups can enter training before its own: 2K - 2 whole batches, of U updates each. It is last used U -
        1 updates after it entered. For whole rollouts, K = 1, this is U - 1: weights are pulled right before
        generation, so the first update on a batch sees age 0.
        """
        return (2 * self.segments_bound - 1) * self.updates_per_rollout_batch - 1

    @property
    def age_bound(self) -> int:
        """No token older than this is ever trained on, in updates."""
        return self.natural_age if self.max_age is None else self.max_age

    @property
    def admission_age(self) -> int:
        """The age that admission plans for: the bound; where only single tokens are masked, what comes by
        itself.
        """
        return max(self.age_bound, self.natural_age) if self.stale_action == "mask" else self.age_bound

    def is_evicted(self, oldest_version: int, newest_version: int, version: int) -> bool:
        """Whether a group must not enter training at policy `version`, where it stays for U updates.

        With `stale_action="mask"` old tokens do not matter as long as a newer one is left to train on in the
        last of them.
        """
        last_use = version + self.updates_per_rollout_batch - 1
        return last_use - (newest_version if self.stale_action == "mask" else oldest_version) > self.age_bound
