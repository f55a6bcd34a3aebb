"""Rewards: problems and completions in, scores out."""
