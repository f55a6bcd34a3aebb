"""Mixed precision: a model's blocks compute in bfloat16, later layers in float32, on float32 weights.

    token ids -> blocks, bfloat16 by autocast -> hidden states, float32 -> head, float32 -> log-probs

The trainer's passes and the transformers engine share it, so that both round at the same places.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import wraps
from threading import Lock
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import nn

from bapo_lightning.system.errors import ConfigError
from bapo_lightning.system.values import FULL, MIXED, PRECISION_ADVICE

if TYPE_CHECKING:
    from transformers import PreTrainedModel

Step = TypeVar("Step", bound=Callable[..., Any])


def blocks(is_mixed: bool, device: torch.device) -> AbstractContextManager[Any]:
    """Returns the context in which a model's blocks compute."""
    if not is_mixed:
        return torch.autocast(device.type, enabled=False)
    return torch.autocast(device.type, torch.bfloat16, cache_enabled=False)


def outside_of_autocast(step: Step) -> Step:
    """Lets a module's method compute in the dtypes of its inputs: Lightning's autocast rounds products."""

    @wraps(step)
    def full(self: Any, *args: Any, **kwargs: Any) -> Any:
        with torch.autocast(self.device.type, enabled=False):
            return step(self, *args, **kwargs)

    return full  # type: ignore[return-value]


def is_mixed(precision: str) -> bool:
    """Whether a trainer computes in mixed precision. Raises ConfigError if nothing can be trained."""
    if precision not in (MIXED, FULL):
        raise ConfigError([f"trainer.precision={precision} {PRECISION_ADVICE}"])
    return precision == MIXED


class _HeadProducts(AbstractContextManager[None]):
    """Counts the threads inside: the first one switches the process, the last one switches it back."""

    def __init__(self) -> None:
        self._lock, self._inside, self._before = Lock(), 0, ""

    def __enter__(self) -> None:
        with self._lock:
            self._inside += 1
            if self._inside == 1:
                self._before = torch.get_float32_matmul_precision()
                torch.set_float32_matmul_precision("medium")

    def __exit__(self, *error: object) -> None:
        with self._lock:
            self._inside -= 1
            if self._inside == 0:
                torch.set_float32_matmul_precision(self._before)


_HEAD_PRODUCTS = _HeadProducts()


def head_products(is_mixed: bool, device: torch.device) -> AbstractContextManager[Any]:
    """Returns the context in which the head's float32 products use oneDNN's kernels on CPUs, which round
    factors to bfloat16 if the CPU has AMX. Sums and results stay float32, which bfloat16 factors alone
    would not give on a CPU. Small products, such as attention's, would be slower.
    """
    return _HEAD_PRODUCTS if is_mixed and device.type == "cpu" else nullcontext()


def round_blocks(model: PreTrainedModel) -> None:
    """Stores weights that autocast would round at each use in bfloat16: all linear layers but the head."""
    head = model.get_output_embeddings()
    for part in model.modules():
        if isinstance(part, nn.Linear) and part is not head:
            part.to(torch.bfloat16)


def stored_dtype(model: PreTrainedModel, name: str, dtype: str) -> torch.dtype:
    """Precision in which an engine of `dtype` holds a weight; `bf16-mixed` as in `round_blocks`."""
    if dtype != MIXED:
        return getattr(torch, dtype)
    layer = model.get_submodule(name.rpartition(".")[0])
    layer = getattr(layer, "base_layer", layer)  # of an adapted layer
    rounds = isinstance(layer, nn.Linear) and layer is not model.get_output_embeddings()
    return torch.bfloat16 if rounds else torch.float32


def exported_dtype(model: PreTrainedModel, name: str, dtype: str) -> torch.dtype:
    """Precision in which transformers keeps a weight of a model of `dtype`; some stay in float32."""
    kept = model._get_dtype_plan(getattr(torch, dtype))
    pattern = next((each for each in kept if re.search(each.replace("*", ".*"), name)), None)
    return getattr(torch, dtype) if pattern is None else kept[pattern]


def cache_dtype(device: torch.device) -> torch.dtype:
    """Returns the dtype of keys and values in which attention computes in mixed precision."""
    return torch.float32 if device.type == "cpu" else torch.bfloat16


def attention_on_cpu(attention: Callable[..., Any]) -> Callable[..., Any]:
    """Attention in float32 on CPUs, whatever autocast says: torch's kernel is half as fast in bfloat16."""

    @wraps(attention)
    def full(module: Any, *states: torch.Tensor, **kwargs: Any) -> Any:
        if states[0].device.type != "cpu" or not torch.is_autocast_enabled("cpu"):
            return attention(module, *states, **kwargs)
        query, key, value, *mask = states
        with torch.autocast("cpu", enabled=False):
            return attention(module, query.float(), key.float(), value.float(), *mask, **kwargs)

    return full


def needs_whole_heads(states: torch.Tensor) -> bool:
    """Whether torch tiles these keys only with all heads: CUDA's flash attention does not take float32."""
    return states.is_cuda and states.dtype is torch.float32 and not torch.is_autocast_enabled("cuda")


def with_whole_heads(attention: Callable[..., Any]) -> Callable[..., Any]:
    """Lets transformers' sdpa repeat shared heads of keys and values if kernels need it."""

    @wraps(attention)
    def whole(
        module: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *mask: Any, **kwargs: Any
    ) -> Any:
        if not needs_whole_heads(key):
            return attention(module, query, key, value, *mask, **kwargs)
        key, value = (states.repeat_interleave(query.shape[1] // key.shape[1], 1) for states in (key, value))
        kwargs.setdefault("is_causal", getattr(module, "is_causal", True))
        return attention(None, query, key, value, *mask, **kwargs)  # the module would make it share heads

    return whole
