"""log Z(x) of a prompt from the policy's hidden states; part of the policy if an objective needs it."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import embedding_bag

from bapo_lightning.data.batches.model_input import PromptCells, on_device

NUM_LAYERS = 3


class LogZ(nn.Module):
    """The estimate of arXiv 2509.15207 (`ProjZModule` of the authors' code): the mean of the prompt's last
    hidden states; twice a linear layer of the same width, GELU and LayerNorm; a linear layer to one number.
    Gradients also reach the policy through it.

    It differs from that code in two ways: it has no dropout (0.1 there), which is never used here, and the
    mean is over all tokens of the prompt, while a slice there cuts off the last token.
    """

    def __init__(self, width: int) -> None:
        """`width`: width of the hidden states, D."""
        super().__init__()
        hidden = [
            layer
            for _ in range(NUM_LAYERS - 1)
            for layer in (nn.Linear(width, width), nn.GELU(), nn.LayerNorm(width))
        ]
        self.layers = nn.Sequential(*hidden, nn.Linear(width, 1))

    def forward(self, hidden: Tensor, prompts: PromptCells) -> Tensor:
        """Returns log Z of the prompt of each response token, [N], at least float32, from the states
        `hidden` of all cells of a micro-batch, [cells, D].
        """
        device, lengths = hidden.device, prompts.prompt_lengths
        cells = on_device(prompts.cells(), device)
        starts = on_device(np.cumsum(lengths) - lengths, device)
        mean = embedding_bag(cells, hidden, starts, mode="mean")
        values = self.layers(mean.to(next(self.parameters()).dtype))[:, 0]
        values = values.to(torch.promote_types(values.dtype, torch.float32))
        repeats = on_device(prompts.response_lengths, device)
        return values.repeat_interleave(repeats, output_size=int(prompts.response_lengths.sum()))
