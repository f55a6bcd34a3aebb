"""Rollout batches between generation and training, and past groups that may be trained on again."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import replace
from statistics import pstdev
from typing import Any

from bapo_lightning.data.rollouts.group_state import ArrayStore, ProblemOfId, pack_group, unpack_group
from bapo_lightning.data.rollouts.regime import Regime, ReuseMinibatches
from bapo_lightning.data.rollouts.replay_rule import ReplayRule
from bapo_lightning.types import Group, Origin, Sample


class ReplayQueue:
    """Serves M minibatches of whole groups of a rollout batch in each of E epochs, each time reshuffled.
    Groups of earlier batches are mixed with the others, or in separate minibatches.

    It keeps order and versions, and drops nothing: every group is served exactly E times.
    """

    def __init__(
        self, epochs: int, minibatches: int, seed: int, replayed: ReuseMinibatches = "mixed"
    ) -> None:
        self._replayed, self._epochs, self._minibatches = replayed, epochs, minibatches
        self._random = random.Random(seed)
        self._pending: deque[list[Group]] = deque()

    def __len__(self) -> int:
        """Number of minibatches that can still be taken."""
        return len(self._pending)

    def put(self, groups: Sequence[Group]) -> None:
        """Queues all minibatches of a rollout batch. Raises ValueError unless they are equally large."""
        size, remainder = divmod(len(groups), self._minibatches)
        if remainder or not size:
            raise ValueError(
                f"a rollout batch of {len(groups)} groups does not divide into {self._minibatches} "
                "minibatches"
            )
        for _ in range(self._epochs):
            for part in self._parts(list(groups)):
                # The single minibatch of a pass needs no shuffling: its sum does not depend on the order.
                order = part if self._minibatches == 1 else self._random.sample(part, len(part))
                self._pending.extend(order[first : first + size] for first in range(0, len(order), size))

    def _parts(self, groups: list[Group]) -> list[list[Group]]:
        if self._replayed == "mixed":
            return [groups]
        parts = [[group for group in groups if is_replayed(group) == replayed] for replayed in (True, False)]
        return parts if self._replayed == "before" else parts[::-1]

    def take(self) -> list[Group]:
        """Returns the next minibatch. Raises IndexError if the queue is empty."""
        return self._pending.popleft()

    def state_dict(self, store: ArrayStore) -> dict[str, Any]:
        """Returns each pending group once, minibatches as numbers of groups, and the shuffler's state."""
        groups = list({id(group): group for minibatch in self._pending for group in minibatch}.values())
        numbers = {id(group): index for index, group in enumerate(groups)}
        version, words, gauss = self._random.getstate()
        return {
            "groups": [pack_group(store, group) for group in groups],
            "pending": [[numbers[id(group)] for group in minibatch] for minibatch in self._pending],
            "random": [version, list(words), gauss],
        }

    def load_state_dict(self, state: dict[str, Any], store: ArrayStore, problem: ProblemOfId) -> None:
        """Restores a state."""
        groups = [unpack_group(store, packed, problem) for packed in state["groups"]]
        self._pending = deque([groups[index] for index in minibatch] for minibatch in state["pending"])
        version, words, gauss = state["random"]
        self._random.setstate((version, tuple(words), gauss))


def is_replayed(group: Group) -> bool:
    """Whether the group entered training in an earlier batch."""
    return any(sample.rollout.origin is Origin.REPLAYED for sample in group.samples)


def marked_as_replayed(group: Group) -> Group:
    """Returns the group with samples of origin REPLAYED, except samples of an expert."""

    def marked(sample: Sample) -> Sample:
        rollout = sample.rollout
        if rollout.origin is not Origin.POLICY:
            return sample
        return replace(sample, rollout=replace(rollout, origin=Origin.REPLAYED))

    return replace(group, samples=tuple(map(marked, group.samples)))


class ReuseBuffer:
    """Keeps groups that have been trained on and returns them for later rollout batches, each at most
    `regime.max_reuses` times. Their tokens keep the log-probs of the policy that sampled them, so that ratios
    stay exact. A rule may keep parts of groups, and change their advantages.
    """

    def __init__(self, regime: Regime, groups_per_batch: int, rule: ReplayRule | None = None) -> None:
        """`regime.reuse_share` limits the share of a batch's groups that come from the buffer."""
        self._regime, self._rule = regime, rule
        self._per_batch = int(regime.reuse_share * groups_per_batch)
        mixed = regime.reuse_minibatches == "mixed"
        self._multiple = 1 if mixed else groups_per_batch // regime.minibatches
        self._entries: list[tuple[Group, int]] = []  # with the number of reuses so far
        self.num_outdated = 0  # groups removed for their age since the last reset

    def __len__(self) -> int:
        """Number of groups kept."""
        return len(self._entries)

    def add(self, groups: Iterable[Group]) -> None:
        """Keeps groups that have just entered training for the first time and teach something."""
        if not self._per_batch:
            return
        if self._rule is None:
            self._entries += [(group, 0) for group in groups]
            return
        self._entries += [(kept, 0) for group in groups if (kept := self._rule.kept(group)) is not None]
        size = sum(len(group.samples) for group, _ in self._entries)
        while self._rule.capacity is not None and size > self._rule.capacity:
            size -= len(self._entries.pop(0)[0].samples)

    def choose(self, version: int) -> list[Group]:
        """Returns groups for a batch that enters training at `version`, best first, and removes late groups.
        If reused groups have separate minibatches, these are full.
        """
        late = self._regime.is_evicted
        young = [
            (group, reuses)
            for group, reuses in self._entries
            if not late(group.oldest_version, group.newest_version, version)
        ]
        self.num_outdated += len(self._entries) - len(young)
        ranked = sorted(range(len(young)), key=lambda index: self._rank(young[index][0]))
        room = self._per_batch if self._rule is None or self._rule.is_ready else 0
        chosen = ranked[: min(room, len(young)) // self._multiple * self._multiple]
        counted = [(group, reuses + (index in chosen)) for index, (group, reuses) in enumerate(young)]
        self._entries = [entry for entry in counted if entry[1] < self._regime.max_reuses]
        return [marked_as_replayed(young[index][0]) for index in chosen]

    def state_dict(self, store: ArrayStore) -> list[dict[str, Any]]:
        """Returns the groups with their numbers of reuses."""
        return [{"group": pack_group(store, group), "reuses": reuses} for group, reuses in self._entries]

    def load_state_dict(self, state: list[dict[str, Any]], store: ArrayStore, problem: ProblemOfId) -> None:
        """Restores a state."""
        self._entries = [(unpack_group(store, entry["group"], problem), entry["reuses"]) for entry in state]

    def _rank(self, group: Group) -> tuple[float, ...]:
        """Returns a sort key: smaller is better; equal groups keep the order in which they came."""
        if self._regime.reuse_priority == "oldest":
            return (group.oldest_version,)
        if self._regime.reuse_priority == "reward_spread":
            return (-pstdev(group.rewards), -group.oldest_version)
        return (-group.oldest_version,)
