"""Activation checkpointing of decoder layers (arXiv 1604.06174): only a layer's input is kept until the
backward pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint


def checkpoint_layers(layers: Sequence[nn.Module]) -> None:
    """Makes each layer compute its activations again in the backward pass.

    transformers' own checkpointing works in train mode only, and a policy is in eval mode; torch's wrapper
    changes the names of the weights. So each layer gets another class, which FSDP2 can still shard.
    """
    classes = {layer_class: _checkpointed(layer_class) for layer_class in {type(layer) for layer in layers}}
    for layer in layers:
        layer.__class__ = classes[type(layer)]


def _checkpointed(layer_class: type[nn.Module]) -> type[nn.Module]:
    def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        compute = partial(layer_class.forward, self)
        if not torch.is_grad_enabled():
            return compute(*args, **kwargs)
        return checkpoint(compute, *args, use_reentrant=False, preserve_rng_state=False, **kwargs)

    return type(
        layer_class.__name__, (layer_class,), {"forward": forward, "__module__": layer_class.__module__}
    )
