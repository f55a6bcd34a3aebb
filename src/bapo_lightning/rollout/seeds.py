"""Random numbers that belong to a request, not to an engine.

After a restart of an engine, in another order, or beside other requests, the same request has the same
random numbers. On a CPU it gives the same tokens. A GPU rounds differently in another batch, so that a token
whose random number lies at its edge may become another one.
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
    """Seed of one sample, in [0, 2^63): a hash, so that neighbouring runs, versions and samples share
    nothing.

    Args:
        run_seed: seed of the run.
        version: policy version that samples.
        problem_id: id of the problem.
        sample_index: number of the sample in its group.
        epoch: epoch of the problem stream. A small set can come twice under one version.
        position: tokens sampled before, under this version or an older one; a resumed rollout must not repeat
            its first random numbers.
        variant: name of another way to ask the same problem again.
    """
    key = f"{run_seed}/{version}/{sample_index}/{problem_id}" + (
        f"/{epoch}/{position}" if epoch or position else ""
    )
    key += f"#{variant}" if variant else ""
    return _hashed(key)


def turn_seed(seed: int, length: int) -> int:
    """Seed of a later turn within a generation pass, in [0, 2^63).

    Args:
        seed: seed of the rollout's request in the pass.
        length: tokens that the policy has sampled in the rollout.
    """
    return _hashed(f"{seed}/turn {length}")


def _hashed(key: str) -> int:
    return int.from_bytes(hashlib.blake2b(key.encode(), digest_size=8).digest(), "little") >> 1


def uniforms(seeds: np.ndarray, position: int) -> np.ndarray:
    """Number `position` of the SplitMix64 stream of each seed (Steele, Lea and Flood, OOPSLA 2014), as
    float64 in [0, 1).

    Args:
        seeds: [B] uint64.
        position: index in the stream, from 0.
    """
    z = seeds + np.uint64((position + 1) * _GOLDEN_GAMMA % 2**64)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    z = z ^ (z >> np.uint64(31))
    return (z >> np.uint64(11)).astype(np.float64) * 2.0**-53
