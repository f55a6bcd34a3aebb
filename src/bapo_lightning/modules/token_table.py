"""Everything that an update knows about each response token, for bounds, loss and monitors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

from bapo_lightning.data.batches.batch import MicroBatch
from bapo_lightning.objectives.bounds import BoundSearch
from bapo_lightning.objectives.surrogate import Objective, importance_ratio, slopes
from bapo_lightning.ranks.collectives import gather_on_controller, num_ranks


@dataclass(frozen=True)
class TokenTable:
    """One row per response token; all fields have shape [N]."""

    logp: Tensor  # nats, current policy at the sampling temperature; carries the graph in a training pass
    entropy: Tensor  # nats, of the current policy's next-token distribution
    ratio: Tensor  # pi / pi_proximal, which is pi / pi_behaviour unless log-probs were recomputed
    behaviour_logp: Tensor  # nats
    proximal_logp: Tensor  # nats
    version: Tensor  # policy version that sampled the token
    advantage: Tensor
    weight: Tensor  # the token's share of the global minibatch's mean, times its correction
    slope: Tensor  # d objective / d ratio: the advantage, until bounds cut it

    @classmethod
    def of(cls, micro_batch: MicroBatch, logp: Tensor, entropy: Tensor) -> TokenTable:
        """Joins a micro-batch with the scores of its tokens."""
        return cls(
            logp=logp,
            entropy=entropy,
            ratio=importance_ratio(logp, micro_batch.proximal_logp),
            behaviour_logp=micro_batch.behaviour_logp,
            proximal_logp=micro_batch.proximal_logp,
            version=micro_batch.version,
            advantage=micro_batch.advantage,
            weight=micro_batch.weight,
            slope=micro_batch.advantage,
        )

    def detach(self) -> TokenTable:
        """Returns the same numbers without the graph."""
        return TokenTable(*(getattr(self, name).detach() for name in NAMES))

    def cut(self, objective: Objective, bounds: BoundSearch) -> TokenTable:
        """Returns the table with the slopes that an objective has within bounds."""
        slope = slopes(objective, self.ratio, self.advantage, bounds.low, bounds.high)
        return replace(self, slope=slope)


NAMES = tuple(field.name for field in fields(TokenTable))


def concatenate(tables: Sequence[TokenTable]) -> TokenTable:
    """Returns the table of a whole minibatch from those of its micro-batches."""
    if len(tables) == 1:
        return tables[0]
    return TokenTable(*(torch.cat([getattr(table, name) for table in tables]) for name in NAMES))


def gather_tables(tables: Sequence[TokenTable]) -> TokenTable | None:
    """Returns the table of all ranks' minibatch on the controller (rank 0), and None on workers.

    Every rank must call it with the tables of its own micro-batches. They pass through the host.
    """
    if num_ranks() == 1:
        return concatenate(tables)
    own = concatenate(tables) if tables else None
    parts = gather_on_controller(None if own is None else {name: getattr(own, name).cpu() for name in NAMES})
    if parts is None or own is None:  # the controller has the costliest share, which is never empty
        return None
    present, device = [part for part in parts if part is not None], own.logp.device
    return TokenTable(*(torch.cat([part[name] for part in present]).to(device) for name in NAMES))
