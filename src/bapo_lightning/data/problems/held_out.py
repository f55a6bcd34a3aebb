"""Decides which problems of a source are held out from training, by a hash of each problem's text."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from typing import Literal

Part = Literal["train", "validation"]


def is_in(part: Part, prompt: str, validation_share: float) -> bool:
    """Whether a problem with this text belongs to a part. Equal texts belong to the same part, whatever the
    other problems are. `validation_share` is the expected share of distinct problems held out.
    """
    return (_position(prompt) < validation_share) is (part == "validation")


def share_that_divides(prompts: Sequence[str]) -> float | None:
    """Returns the least hundredth that, as `validation_share`, leaves no part empty; None without one."""
    places = [_position(prompt) for prompt in prompts]
    shares = (hundredth / 100 for hundredth in range(1, 100))
    return next((share for share in shares if min(places) < share <= max(places)), None)


def _position(prompt: str) -> float:
    return int.from_bytes(sha256(prompt.encode()).digest()[:6]) / 2**48  # evenly spread over [0, 1)
