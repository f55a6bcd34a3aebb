"""Which problems of a source are held out from training: a hash of its text decides for each."""

from __future__ import annotations

from hashlib import sha256
from typing import Literal

Part = Literal["train", "validation"]


def is_in(part: Part, prompt: str, validation_share: float) -> bool:
    """Whether a problem with this text belongs to a part. Equal texts belong to the same one, whatever the
    other problems are. `validation_share` of the distinct problems is expected to be held out.
    """
    position = int.from_bytes(sha256(prompt.encode()).digest()[:6]) / 2**48  # evenly spread over [0, 1)
    return (position < validation_share) is (part == "validation")
