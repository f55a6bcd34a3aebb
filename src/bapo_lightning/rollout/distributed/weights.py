"""The policy's weights for the engines of several ranks at once.

All ranks together gather sharded weights tensor by tensor, but engines do not ask in step: one starts again
with the first tensor, another dies half-way, a third rank has none, and one that was restarted needs weights
that the others have. So ranks agree before each pass over the weights, and every rank goes through the whole
pass, even if its engine listens no more.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, field
from typing import cast

import torch

from bapo_lightning.ranks.channel import Channel
from bapo_lightning.rollout.engine import (
    FACTOR_MARK,
    MERGED,
    MeasuredWeights,
    RolloutEngine,
    Wanted,
    WeightSource,
)


@dataclass
class CollectiveWeightSource:
    """A `WeightSource` for the engine of this rank, during one `feed`."""

    source: WeightSource  # the policy; going through its weights may be a collective
    channel: Channel  # of the trainer's threads
    _passes: list[Generator[tuple[str, torch.Tensor]]] = field(default_factory=list, init=False)

    def feed(self, engine: RolloutEngine | None, version: int) -> None:
        """Gives `engine` the weights as policy `version`; without one, only helps the other ranks. Every rank
        must call it.

        Raises:
            EngineError: this rank's engine failed; the other ranks' got theirs all the same.
        """
        try:
            if engine is not None:
                engine.load_weights(self, version)
        finally:
            for begun in self._passes:
                begun.close()
            while (wanted := widest(self.channel.all(None))) is not None:
                for _ in self.source.named_weights(wanted):
                    pass

    def named_weights(self, wanted: Wanted = MERGED) -> Iterator[tuple[str, torch.Tensor]]:
        """One pass over all weights."""
        self._passes.append(self._one_pass(wanted))
        return self._passes[-1]

    def weight_shapes(self) -> Iterator[tuple[str, torch.dtype, torch.Size]]:
        """See `MeasuredWeights`; no collective."""
        return cast(MeasuredWeights, self.source).weight_shapes()

    def _one_pass(self, wanted: Wanted) -> Generator[tuple[str, torch.Tensor]]:
        everyones = widest(self.channel.all(wanted))
        assert everyones is not None
        weights = self.source.named_weights(everyones)
        try:
            for name, weight in weights:
                if wanted == everyones or FACTOR_MARK in name:
                    yield name, weight
        finally:
            for _ in weights:
                pass


def widest(wanted: Sequence[Wanted | None]) -> Wanted | None:
    """The pass that has what every rank wants: engines of one run differ only in what they have already."""
    return max(filter(None, wanted), key=lambda each: each.content != "adapters", default=None)
