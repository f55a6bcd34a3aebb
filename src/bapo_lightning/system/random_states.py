"""The global random generators: Python's, NumPy's, and torch's on the CPU and on CUDA devices in use."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch


def random_states() -> dict[str, Any]:
    """States of all generators as primitives and tensors, readable by `torch.load(weights_only=True)`."""
    version, words, gauss = random.getstate()
    name, keys, position, has_gauss, cached = np.random.get_state(legacy=True)
    return {
        "python": [version, torch.tensor(words, dtype=torch.int64), gauss],
        "numpy": [
            str(name),
            torch.from_numpy(np.asarray(keys, np.int64)),
            int(position),
            int(has_gauss),
            float(cached),
        ],
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else [],
    }


def set_random_states(states: dict[str, Any]) -> None:
    """Restores the states. CUDA devices without a stored state keep their own."""
    version, words, gauss = states["python"]
    random.setstate((version, tuple(words.tolist()), gauss))
    name, keys, *rest = states["numpy"]
    np.random.set_state((name, keys.numpy().astype(np.uint32), *rest))
    torch.set_rng_state(states["torch"].cpu())
    for device, state in enumerate(states["cuda"][: torch.cuda.device_count()]):
        torch.cuda.set_rng_state(state.cpu(), device)


@contextmanager
def random_states_kept(seed: int | None = None) -> Iterator[None]:
    """Context that restores the states of all generators at its end. With a `seed`, torch's generator on the
    CPU starts from it, so that the numbers drawn inside do not depend on the numbers drawn before.
    """
    before = random_states()
    try:
        if seed is not None:
            torch.default_generator.manual_seed(seed)
        yield
    finally:
        set_random_states(before)
