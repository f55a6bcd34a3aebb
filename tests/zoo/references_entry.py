"""References of objectives that know the policy when a batch entered training, each from its formula."""

from __future__ import annotations

import numpy as np
from tests.zoo.reference import Array, Columns, Reference
from tests.zoo.references_tokens import clip, reinforce


def erc(columns: Columns) -> Array:
    """ERC (arXiv 2512.05591): PPO's clip with a dual clip of 10, and nothing where H / H_old is not between
    0.95 and 1.05, 1e-8 added to both.
    """
    change = (columns["entropy"] + 1e-8) / (columns["entry_entropy"] + 1e-8)
    return np.where(np.abs(change - 1) < 0.05, clip(columns, dual_clip=10.0), 0.0)


def rover(columns: Columns) -> Array:
    """ROVER (arXiv 2509.24981; its `compute_rover_loss`): of -w (log r - target)^2, whose target is A plus
    how far the mean log-prob at the next token of the response has moved, or 0 after the last one.
    """
    result = np.empty_like(columns["ratio"])
    for token, target in enumerate(columns["advantage"]):
        if token < np.flatnonzero(columns["sequence"] == columns["sequence"][token])[-1]:
            target += columns["mean_logp"][token + 1] - columns["entry_mean_logp"][token + 1]
        result[token] = 2 * columns["weight"][token] * (target - columns["log_ratio"][token])
    return result


def rover_at_one(columns: Columns) -> Array:
    """2 * weight * advantage"""
    return 2 * reinforce(columns)


REFERENCES = {"erc": Reference(erc), "rover": Reference(rover, rover_at_one)}
