"""Logits of next tokens, by a model and a cache of what it has read.

Shapes: B rows, T new tokens, L tokens in the cache, V vocabulary.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import Cache, PreTrainedModel

from bapo_lightning.precision import blocks, cache_dtype, head_products
from bapo_lightning.rollout.hf.kv_cache import move_rows, roomy_cache


@dataclass(frozen=True, eq=False)
class Reader:
    """A model that reads tokens into a cache."""

    model: PreTrainedModel
    is_mixed: bool  # rounds where a trainer in mixed precision does
    device: torch.device

    def next_logits(
        self, token_ids: Tensor, cache: Cache, mask: Tensor | None, positions: Tensor | None
    ) -> Tensor:
        """Reads `token_ids[B, T]`, and returns the logits [B, V] of the tokens behind them. `mask[B, L + T]`:
        0 at padding; `positions[B, T]`: of the tokens in their rows; None for both: there is no padding.
        """
        arguments = {"attention_mask": mask, "position_ids": positions}
        with blocks(self.is_mixed, token_ids.device):
            states = self.model.base_model(
                token_ids, **arguments, past_key_values=cache, use_cache=True
            ).last_hidden_state
        with head_products(self.is_mixed, token_ids.device):
            logits: Tensor = self.model.get_output_embeddings()(states[:, -1])
        return logits

    def opened(
        self, contexts: Sequence[array[int]], new_tokens: int
    ) -> tuple[Cache, Tensor | None, Tensor | None, Tensor]:
        """Reads whole contexts, equal ones once, padded on the left: a cache with room for `new_tokens` more,
        mask and positions [B, T], and the logits of the next tokens.
        """
        number: dict[bytes, int] = {}
        owner = [number.setdefault(context.tobytes(), len(number)) for context in contexts]
        token_ids, mask = _left_padded([array("i", context) for context in number], self.device)
        cache = roomy_cache(
            token_ids.shape[1] + new_tokens, cache_dtype(self.device) if self.is_mixed else None
        )
        shown = None if bool(mask.all()) else mask
        positions = None if shown is None else (mask.cumsum(-1) - 1).clamp_min(0)
        logits = self.next_logits(token_ids, cache, shown, positions)
        if len(number) < len(contexts):
            rows = torch.tensor(owner, device=self.device)
            move_rows(cache, rows)
            logits = logits[rows]
            if shown is not None and positions is not None:
                shown, positions = shown[rows], positions[rows]
        return cache, shown, positions, logits


def _left_padded(sequences: Sequence[array[int]], device: torch.device) -> tuple[Tensor, Tensor]:
    rows = [torch.tensor(sequence, dtype=torch.long) for sequence in sequences]
    kept = [torch.ones_like(row) for row in rows]
    token_ids, mask = (pad_sequence(each, batch_first=True, padding_side="left") for each in (rows, kept))
    return token_ids.to(device), mask.to(device)
