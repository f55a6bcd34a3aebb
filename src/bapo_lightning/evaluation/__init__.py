"""Metrics of k sampled answers per problem: as functions here, as torchmetrics in `evaluation.metrics`."""

from bapo_lightning.evaluation.functional import avg_at_k, maj_at_k, pass_at_k

__all__ = ["avg_at_k", "maj_at_k", "pass_at_k"]
