"""Needs of the data side from the module that is trained."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from bapo_lightning.rollout.weight_sync import ScoringWeightSource


class VersionedPolicyOwner(Protocol):
    """The part of the LightningModule that its data module needs."""

    policy: ScoringWeightSource
    micro_batch_tokens: int
    last_entropy: float | Tensor  # nats, mean over the tokens of the last update

    @property
    def policy_version(self) -> int:
        """Optimizer updates made so far."""
        ...
