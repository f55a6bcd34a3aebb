"""What each request of a batch could have sampled, kept step by step."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field

import numpy as np
from torch import Tensor

from bapo_lightning.rollout.hf.sampling import candidates
from bapo_lightning.types import Candidates


@dataclass(eq=False)
class Notes:
    """Candidates of rows of logits, for a request each."""

    noted: int  # of each row, at most; 0: nothing is kept
    _steps: list[tuple[np.ndarray, ...]] = field(default_factory=list, init=False)

    def add(self, requests: Tensor, logprobs: Tensor) -> None:
        """Notes one place of some requests, by their numbers [B], from the log-probs [B, V] of all tokens."""
        if self.noted:
            found = (requests, *candidates(logprobs, self.noted))
            self._steps.append(tuple(each.cpu().numpy() for each in found))

    def of_requests(self, number: int) -> list[Candidates | None]:
        """Returns what was noted of the requests 0 to `number` - 1, each in the order of its places."""
        if not self.noted:
            return [None] * number
        requests, tokens, logprobs, counts = map(np.concatenate, zip(*self._steps, strict=True))
        places = np.argsort(requests, kind="stable")
        owners = np.repeat(requests, counts)
        entries = np.argsort(owners, kind="stable")
        of_entries = np.bincount(owners, minlength=number).cumsum()[:-1]
        of_places = np.bincount(requests, minlength=number).cumsum()[:-1]
        parts = (
            np.split(tokens[entries].astype(np.int32), of_entries),
            np.split(logprobs[entries].astype(np.float32), of_entries),
            np.split(counts[places].astype(np.int32), of_places),
        )
        return [
            Candidates(array("i", ids.tobytes()), array("f", values.tobytes()), array("i", own.tobytes()))
            for ids, values, own in zip(*parts, strict=True)
        ]
