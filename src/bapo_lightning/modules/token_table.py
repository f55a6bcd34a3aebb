"""Everything an update knows about each response token: the argument of bounds, loss and monitors alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from bapo_lightning.data.batches.batch import MicroBatch
from bapo_lightning.objectives.surrogate import importance_ratio
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
    weight: Tensor  # share of the token in the global minibatch's mean, times its correction

    @classmethod
    def of(cls, micro_batch: MicroBatch, logp: Tensor, entropy: Tensor) -> TokenTable:
        """Join a micro-batch with the scores of its tokens."""
        return cls(
            logp=logp,
            entropy=entropy,
            ratio=importance_ratio(logp, micro_batch.proximal_logp),
            behaviour_logp=micro_batch.behaviour_logp,
            proximal_logp=micro_batch.proximal_logp,
            version=micro_batch.version,
            advantage=micro_batch.advantage,
            weight=micro_batch.weight,
        )

    def detach(self) -> TokenTable:
        """Same numbers without the graph."""
        return TokenTable(*(getattr(self, f.name).detach() for f in fields(self)))


def concatenate(tables: Sequence[TokenTable]) -> TokenTable:
    """The table of a whole minibatch from those of its micro-batches."""
    if len(tables) == 1:
        return tables[0]
    return TokenTable(*(torch.cat([getattr(table, f.name) for table in tables]) for f in fields(TokenTable)))


def gather_tables(tables: Sequence[TokenTable]) -> TokenTable | None:
    """The table of the minibatch of all ranks from those of this rank's micro-batches, on the leader; None on
    other ranks, which all must call it. It goes through the host, in the types that it has.
    """
    if num_ranks() == 1:
        return concatenate(tables)
    own = concatenate(tables) if tables else None
    names = [f.name for f in fields(TokenTable)]
    parts = gather_on_controller(None if own is None else {name: getattr(own, name).cpu() for name in names})
    if parts is None or own is None:  # the leader has the costliest share, so that there it is never empty
        return None
    return TokenTable(
        *(
            torch.cat([part[name] for part in parts if part is not None]).to(getattr(own, name).device)
            for name in names
        )
    )
