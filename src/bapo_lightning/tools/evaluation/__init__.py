"""Evaluation of checkpoints and models on held-out problems."""
