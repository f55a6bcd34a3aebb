"""References of objectives of single tokens, each from the formula of its paper."""

from __future__ import annotations

import numpy as np

from zoo.reference import Array, Columns, Reference


def clip(columns: Columns, dual_clip: float = np.inf) -> Array:
    """PPO (arXiv 1707.06347, Eq. 7): w r A, but nothing where A > 0 and r > high, or A < 0 and r < low; with
    a dual clip (arXiv 1912.09729, Eq. 5) nothing either where A < 0 and r > c.
    """
    ratio, advantage = columns["ratio"], columns["advantage"]
    dead = np.where(advantage > 0, ratio > columns["high"], (ratio < columns["low"]) | (ratio > dual_clip))
    return np.where(dead, 0.0, columns["weight"] * ratio * advantage)


def gspo(columns: Columns) -> Array:
    """GSPO (arXiv 2507.18071, Eq. 10): w s A, or nothing, where s is the geometric mean of the ratios of the
    response, in place of each token's own.
    """
    ratio = np.empty_like(columns["ratio"])
    for sequence in set(columns["sequence"].tolist()):
        own = columns["sequence"] == sequence
        ratio[own] = np.prod(columns["ratio"][own]) ** (1 / own.sum())
    return clip({**columns, "ratio": ratio})


CLIP = Reference(clip)
REFERENCES = {
    "grpo": CLIP,
    "dapo": CLIP,
    "bapo": CLIP,
    "gspo": Reference(gspo),
    "bapo_authors_code": Reference(lambda columns: clip(columns, dual_clip=3.0)),
    "bapo_authors_example": Reference(lambda columns: clip(columns, dual_clip=3.0)),
    "bapo_memory": CLIP,
    "bapo_octothinker": CLIP,
    "bapo_rest": CLIP,
    "bapo_upper": CLIP,
}
