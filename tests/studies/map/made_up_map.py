"""Cells of a map on made-up curves whose answer is known."""

import numpy as np

from studies.map.cells import FIRST_COMPARED, FRESH, MapCell, measured_file

CELL = MapCell("table", 0.1, 8, (("wrong_tokens", 9),))
OTHER = MapCell("table", 0.1, 32, (("wrong_tokens", 9),))
CURVES = [
    *("reward", "entropy", "pass_at_k", "key_probability", "worst_quarter", "low", "high", "target_met"),
    *("rests", "ends", "positive_share", "positive_share_unclipped", "clip_fraction"),
    *("clip_fraction_positive", "clip_fraction_negative", "grad_norm"),
]
METHODS = ["grpo", "narrow", "wide", "better", "same", "noisy"]
GAIN = {FRESH: 0.2, "grpo": 0.0, "narrow": -0.1, "wide": 0.1, "better": 0.1, "same": 0.0, "noisy": 0.01}


def write(folder, cell, method, gain, spread=0.001):
    """A method whose reward is GRPO's plus `gain`, give or take `spread` from seed to seed."""
    seeds = np.array([*range(4), *range(FIRST_COMPARED, FIRST_COMPARED + 8)])
    luck = 0.05 * np.sin(seeds)[:, None]  # of the seed, alike for all methods
    own = spread * np.where(np.arange(len(seeds)) % 2, 1, -1)[:, None]
    reward = np.full((len(seeds), 5), 0.5) + luck + gain + own
    curves = {name: np.full_like(reward, 0.3) for name in CURVES} | {"reward": reward}
    if method != "better":
        curves |= {"rests": np.full_like(reward, np.nan), "ends": np.full_like(reward, np.nan)}
    path = measured_file(folder, cell, method)
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez(path, seeds=seeds, **curves)
