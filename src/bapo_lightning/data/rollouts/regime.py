"""Regimes: how stale the data may be when it is trained on (conf group `regime/`).

Symbols: P groups in a rollout batch, which trains for U = epochs * minibatches updates; N rollout
batches in the run; K segments at most in a rollout. The *clock* counts updates attempted; ages count policy
versions, which never run ahead of the clock.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Annotated, Any, Literal

from annotated_types import Ge, Lt

from bapo_lightning.system.values import Count, CountOrZero, Name, Seconds, Size, StaleContext

StaleAction = Literal["evict", "mask"]
ReusePriority = Literal["newest", "oldest", "reward_spread"]
ReuseMinibatches = Literal["mixed", "before", "after"]


@dataclass(frozen=True, slots=True)
class Regime:
    """When data is generated and how long it may be trained on; by default synchronous whole rollouts."""

    name: Name
    epochs: Size  # E: passes over each rollout batch
    minibatches: Size  # M: optimizer updates in one pass
    max_new_tokens: Size = 1  # longest response, over all its segments
    async_generation: bool = False  # generate during training
    # Hard bound on the age of a trained token, in updates; None: `natural_age`.
    max_age: CountOrZero | None = None
    stale_action: StaleAction = "evict"  # beyond it: evict the whole group, or mask only the old tokens
    # Tokens of a generation pass after which a rollout is stopped, to be resumed; None: never.
    partial_tokens: Count | None = None
    max_segments: Count | None = None  # policy versions in one rollout
    reuse_share: Annotated[float, Ge(0), Lt(1)] = 0.0  # of past groups in a rollout batch
    max_reuses: CountOrZero = 0  # rollout batches that a group may enter after its first
    reuse_priority: ReusePriority = "newest"
    # Reused groups are mixed with fresh groups, or in separate minibatches before or after them.
    reuse_minibatches: ReuseMinibatches = "mixed"
    # Within so many groups from the oldest on, later ones may train first; None: as they become ready.
    window: Count | None = None
    schedule: str | None = None  # run folder whose asynchronous schedule is followed; None: no schedule
    # Requests enter and leave between decoding steps, and weights change there; running responses keep the
    # keys and values of earlier weights, or read their tokens again. None: generation works in passes.
    stream: StaleContext | None = None
    wait_warning_seconds: Seconds = 300  # longer waits print their reason; async generation only
    # Most rollout batches of groups that run or wait to enter training; None: as many as `max_age` allows.
    batches_in_flight: Size | None = None

    @classmethod
    def problems(cls, options: Mapping[str, Any]) -> Iterator[str]:
        """Yields conflicts between options of right types: the reason and what to write instead."""
        regime = cls(**{each.name: options[each.name] for each in fields(cls)})
        is_stale = regime.natural_age or regime.async_generation or regime.reuse_share
        if regime.name == "on_policy" and is_stale:
            yield (
                "name=on_policy promises one update on tokens of the current policy, but these settings "
                "train on older tokens; write regime=replay, partial, async, stream or reuse"
            )
        yield from regime._age_problems()
        yield from regime._stream_problems()
        yield from regime._partial_problems()
        yield from regime._reuse_problems()
        if regime.window is not None and not regime.async_generation:
            yield (
                f"window={regime.window} without async_generation: synchronous generation makes the trainer "
                "wait for whole batches, so that nothing is gained by overtaking; write regime=windowed_fifo"
            )
        if regime.batches_in_flight is not None and not regime.async_generation:
            yield (
                f"batches_in_flight={regime.batches_in_flight} without async_generation has no effect: "
                "synchronous generation is never ahead; leave it out"
            )
        if regime.schedule is not None and not regime.async_generation:
            yield (
                f"schedule={regime.schedule} without async_generation has no effect: synchronous runs repeat "
                "exactly without it; leave it out"
            )

    @property
    def updates_per_rollout_batch(self) -> int:
        """U, the paper's staleness: the number of updates on one rollout batch."""
        return self.epochs * self.minibatches

    @property
    def is_stream(self) -> bool:
        """Whether weights change between two decoding steps."""
        return self.stream is not None

    @property
    def is_partial(self) -> bool:
        """Whether rollouts are stopped and resumed."""
        return self.partial_tokens is not None

    @property
    def segments_bound(self) -> int:
        """K: largest number of passes that a rollout can need, since each but the last brings
        `partial_tokens` tokens; at most `max_segments`.
        """
        if self.partial_tokens is None:
            return 1
        needed = math.ceil(self.max_new_tokens / self.partial_tokens)
        return needed if self.max_segments is None else min(needed, self.max_segments)

    @property
    def natural_age(self) -> int:
        """Largest age that synchronous generation alone can cause, in updates: (2K - 1) U - 1.

        At most P groups start in a pass, and at most K P are in flight (running or ready). While a rollout
        makes its K passes, at most (K - 1) P groups start after it, so at most K P - 1 + (K - 1) P groups can
        enter training before its own: 2K - 2 whole batches, of U updates each. Its last use is U - 1 updates
        after it entered. For whole rollouts, K = 1, this is U - 1: weights are pulled right before
        generation, so the first update on a batch sees age 0.
        """
        return (2 * self.segments_bound - 1) * self.updates_per_rollout_batch - 1

    @property
    def age_bound(self) -> int:
        """Largest age of a trained token, in updates."""
        return self.natural_age if self.max_age is None else self.max_age

    @property
    def admission_age(self) -> int:
        """Age for which admission plans, in updates: the bound, or the natural age if it is larger and only
        single tokens are masked.
        """
        return max(self.age_bound, self.natural_age) if self.stale_action == "mask" else self.age_bound

    def is_evicted(self, oldest_version: int, newest_version: int, version: int) -> bool:
        """Whether a group must not enter training at policy `version`, in which it stays for U updates.

        With `stale_action="mask"` old tokens do not matter as long as the last of these updates still has a
        newer token to train on.
        """
        last_use = version + self.updates_per_rollout_batch - 1
        return last_use - (newest_version if self.stale_action == "mask" else oldest_version) > self.age_bound

    def _age_problems(self) -> Iterator[str]:
        updates = self.updates_per_rollout_batch
        if self.max_age is None:
            unbounded = ["async_generation=true"] if self.async_generation else []
            unbounded += [f"reuse_share={self.reuse_share}"] if self.reuse_share else []
            for setting in unbounded:
                yield (
                    f"{setting} needs max_age: nothing else bounds the age of the data; one rollout batch "
                    f"ahead is max_age={2 * updates - 1}"
                )
        elif self.max_age < updates - 1:
            yield (
                f"max_age={self.max_age}: a rollout batch is trained on for epochs x minibatches = {updates} "
                f"updates, so its last update sees tokens of age {updates - 1} at least; write "
                f"max_age={updates - 1} or fewer updates"
            )

    def _stream_problems(self) -> Iterator[str]:
        if not self.is_stream:
            return
        if not self.async_generation:
            yield (
                f"stream={self.stream} without async_generation: weights change between decoding steps only "
                "while generation and training overlap; write regime=stream"
            )
        if self.is_partial:
            yield (
                f"partial_tokens={self.partial_tokens} with stream={self.stream}: in a stream no response is "
                "stopped, since weights change between its tokens; write one of the two"
            )

    def _partial_problems(self) -> Iterator[str]:
        if self.is_partial:
            return
        if self.stale_action == "mask" and not self.is_stream:
            yield (
                "stale_action=mask without partial_tokens: all tokens of a whole rollout are equally old, so "
                "masking them would be evicting it; write stale_action=evict, or regime=partial"
            )
        if self.max_segments is not None:
            yield (
                f"max_segments={self.max_segments} without partial_tokens has no effect: whole rollouts have "
                "one segment"
            )

    def _reuse_problems(self) -> Iterator[str]:
        oldest_reused = 2 * self.updates_per_rollout_batch - 1
        if not self.reuse_share:
            if self.max_reuses:
                yield (f"max_reuses={self.max_reuses} without reuse_share has no effect; write regime=reuse")
            if self.reuse_minibatches != "mixed":
                yield (
                    f"reuse_minibatches={self.reuse_minibatches} without reuse_share has no effect; write "
                    "regime=reuse"
                )
            return
        if not self.max_reuses:
            yield f"max_reuses=0 with reuse_share={self.reuse_share} reuses nothing; write max_reuses=1"
        if self.async_generation:
            yield (
                "async_generation=true with reuse_share: how many fresh groups a batch needs then depends on "
                "the content of the buffer when the batch is trained on, so that admission cannot know how "
                "old a group will get; write one of the two"
            )
        elif self.max_age is not None and self.max_age < oldest_reused:
            yield (
                f"max_age={self.max_age} lets no group be reused: it is {self.updates_per_rollout_batch} "
                f"updates old when the next rollout batch begins and {oldest_reused} at the end of it; write "
                f"max_age={oldest_reused} at least"
            )
