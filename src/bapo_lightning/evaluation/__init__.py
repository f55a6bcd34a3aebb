"""Metrics of k sampled answers per problem."""

from bapo_lightning.evaluation.functional import avg_at_k, maj_at_k, pass_at_k

__all__ = ["avg_at_k", "maj_at_k", "pass_at_k"]
