"""Lightning strategies that a run can name."""

from __future__ import annotations


def single_device() -> str:
    """Returns Lightning's own choice for one process with one device."""
    return "auto"
