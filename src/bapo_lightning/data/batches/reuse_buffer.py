"""Past groups that may be trained on again (sample replay), with a cap on how often and on how old."""

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
        """At most `regime.reuse_share` of a batch's groups come from here."""
        self._regime = regime
        self._per_batch = int(regime.reuse_share * groups_per_batch)
        self._entries: list[tuple[Group, int]] = []  # with the reuses so far
        self.num_outdated = 0  # groups given up for their age since this was last reset

    def __len__(self) -> int:
        """Groups kept."""
        return len(self._entries)

    def add(self, groups: Iterable[Group]) -> None:
        """Keep groups that have just entered training for the first time."""
        if self._per_batch:
            self._entries += [(group, 0) for group in groups if not group.is_uniform]

    def draw(self, version: int) -> list[Group]:
        """Groups for a batch that enters training at policy `version`, best first; those that would be too
        old are given up.
        """
        young = [entry for entry in self._entries if not self._is_late(entry[0], version)]
        self.num_outdated += len(self._entries) - len(young)
        ranked = sorted(range(len(young)), key=lambda place: self._rank(young[place][0]))
        drawn = ranked[: self._per_batch]
        used = {place: (young[place][0], young[place][1] + 1) for place in drawn}
        kept = [used.get(place, entry) for place, entry in enumerate(young)]
        self._entries = [(group, reuses) for group, reuses in kept if reuses < self._regime.max_reuses]
        return [young[place][0] for place in drawn]

    def state_dict(self, store: ArrayStore) -> list[dict[str, Any]]:
        """The groups and how often each was used."""
        return [{"group": pack_group(store, group), "reuses": reuses} for group, reuses in self._entries]

    def load_state_dict(self, state: list[dict[str, Any]], store: ArrayStore, problem: ProblemOfId) -> None:
        """Go on from there."""
        self._entries = [(unpack_group(store, entry["group"], problem), entry["reuses"]) for entry in state]

    def _is_late(self, group: Group, version: int) -> bool:
        return self._regime.is_evicted(group.oldest_version, group.newest_version, version)

    def _rank(self, group: Group) -> tuple[float, ...]:
        """Smaller is better; equals stay in the order in which they came."""
        if self._regime.reuse_priority == "oldest":
            return (group.oldest_version,)
        if self._regime.reuse_priority == "reward_spread":
            return (-pstdev(group.rewards), -group.oldest_version)
        return (-group.oldest_version,)
