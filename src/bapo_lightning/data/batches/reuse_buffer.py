"""Past groups that may be trained on again (sample replay), with limits on number of uses and age."""

from __future__ import annotations

from collections.abc import Iterable
from statistics import pstdev
from typing import Any

from bapo_lightning.data.rollouts.group_state import ArrayStore, ProblemOfId, pack_group, unpack_group
from bapo_lightning.data.rollouts.regime import Regime
from bapo_lightning.types import Group


class ReuseBuffer:
    """Keeps groups that have been trained on and gives them back for later rollout batches, each at most
    `regime.max_reuses` times.

    Their tokens keep the log-probs of the policy that sampled them, so that ratios stay exact however old
    they get. Groups of equal rewards are not kept: nothing can be learned from them.
    """

    def __init__(self, regime: Regime, groups_per_batch: int) -> None:
        """`regime.reuse_share` limits the share of a batch's groups that come from here."""
        self._regime = regime
        self._per_batch = int(regime.reuse_share * groups_per_batch)
        self._entries: list[tuple[Group, int]] = []  # with the number of reuses so far
        self.num_outdated = 0  # groups removed for their age since the last reset

    def __len__(self) -> int:
        """Number of groups kept."""
        return len(self._entries)

    def add(self, groups: Iterable[Group]) -> None:
        """Keeps groups that have just entered training for the first time."""
        if self._per_batch:
            self._entries += [(group, 0) for group in groups if not group.is_uniform]

    def choose(self, version: int) -> list[Group]:
        """Returns groups for a batch that enters training at policy `version`, best first. Groups that would
        be too old are removed.
        """
        young = [entry for entry in self._entries if not self._is_late(entry[0], version)]
        self.num_outdated += len(self._entries) - len(young)
        ranked = sorted(range(len(young)), key=lambda index: self._rank(young[index][0]))
        chosen = ranked[: self._per_batch]
        used = {index: (young[index][0], young[index][1] + 1) for index in chosen}
        kept = [used.get(index, entry) for index, entry in enumerate(young)]
        self._entries = [(group, reuses) for group, reuses in kept if reuses < self._regime.max_reuses]
        return [young[index][0] for index in chosen]

    def state_dict(self, store: ArrayStore) -> list[dict[str, Any]]:
        """Groups with the number of their uses."""
        return [{"group": pack_group(store, group), "reuses": reuses} for group, reuses in self._entries]

    def load_state_dict(self, state: list[dict[str, Any]], store: ArrayStore, problem: ProblemOfId) -> None:
        """Restores a state."""
        self._entries = [(unpack_group(store, entry["group"], problem), entry["reuses"]) for entry in state]

    def _is_late(self, group: Group, version: int) -> bool:
        return self._regime.is_evicted(group.oldest_version, group.newest_version, version)

    def _rank(self, group: Group) -> tuple[float, ...]:
        """Sort key: smaller is better; equal groups stay in the order in which they came."""
        if self._regime.reuse_priority == "oldest":
            return (group.oldest_version,)
        if self._regime.reuse_priority == "reward_spread":
            return (-pstdev(group.rewards), -group.oldest_version)
        return (-group.oldest_version,)
