"""bapo-lightning: off-policy RL of language models with BAPO (arXiv 2510.18927) on Lightning."""

from __future__ import annotations

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bapo_lightning.library import BapoModule, RolloutDataModule, capture, configure, fit

__version__ = "1.0.0"
__all__ = ["BapoModule", "RolloutDataModule", "capture", "configure", "fit"]


def __getattr__(name: str) -> Any:
    """Imports a name on first use: torch takes seconds to load, and commands must answer sooner."""
    if name in __all__:
        os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # as in the commands; see cli.train
        import_module("bapo_lightning.system.host").let_segments_grow()
        return getattr(import_module("bapo_lightning.library"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
