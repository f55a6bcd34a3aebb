"""Random numbers that belong to a request, not to an engine: they stay the same after a restart, in another
order, or in another batch. On a CPU the tokens do, too; a GPU rounds differently in another batch.
"""

from __future__ import annotations

import hashlib

import numpy as np

_GOLDEN_GAMMA = 0x9E3779B97F4A7C15


def request_seed(
    run_seed: int,
    version: int,
    problem_id: str,
    sample_index: int,
    epoch: int = 0,
    position: int = 0,
    variant: str = "",
) -> int:
    """Returns the seed of one sample, in [0, 2^63): a hash, so that neighbouring runs, versions and samples
    share nothing.

    `epoch`: of the problem stream, since a small set can come twice under one version. `position`: number of
    tokens sampled before; a resumed rollout must not repeat its first random numbers. `variant`: another way
    to ask the same problem again.
    """
    key = f"{run_seed}/{version}/{sample_index}/{problem_id}" + (
        f"/{epoch}/{position}" if epoch or position else ""
    )
    key += f"#{variant}" if variant else ""
    return _hashed(key)


def turn_seed(seed: int, length: int) -> int:
    """Returns the seed of a later turn in a pass, in [0, 2^63); `length`: number of tokens sampled before."""
    return _hashed(f"{seed}/turn {length}")


def _hashed(key: str) -> int:
    return int.from_bytes(hashlib.blake2b(key.encode(), digest_size=8).digest(), "little") >> 1


def uniforms(seeds: np.ndarray, positions: int | np.ndarray) -> np.ndarray:
    """Returns the numbers at `positions` (from 0; one, or [B]) in the SplitMix64 streams of `seeds` [B]
    uint64 (Steele, Lea and Flood, OOPSLA 2014), as float64 in [0, 1).
    """
    z = seeds + (np.atleast_1d(positions).astype(np.uint64) + np.uint64(1)) * np.uint64(_GOLDEN_GAMMA)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    z = z ^ (z >> np.uint64(31))
    return (z >> np.uint64(11)).astype(np.float64) * 2.0**-53
