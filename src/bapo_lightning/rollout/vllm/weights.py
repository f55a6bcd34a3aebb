"""Replacement of the weights of a running vLLM model, on the worker's side, for every transport.

    begin_reload -> load_part, one part after the other -> end_reload

vLLM imports `WorkerExtension` by its name wherever its worker runs: in this process, in one below it, or behind
the HTTP server. The trainer's side is `weight_transport`.

vLLM's layerwise reload takes weights under their Hugging Face names, fuses and shards them as at start-up,
and copies them into the tensors that its kernels know, layer by layer: no second copy of the model. Two
things it does not do are done here: it only logs what was missing, and on a CPU it leaves the packed copy of
a tied output head as it was (log-probs are then wrong by 1 to 18 nats).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from vllm.config import set_current_vllm_config
from vllm.model_executor.layers.vocab_parallel_embedding import VocabParallelEmbedding
from vllm.model_executor.model_loader.reload.layerwise import (
    finalize_layerwise_reload,
    get_layerwise_info,
    initialize_layerwise_reload,
)
from vllm.platforms import current_platform

from bapo_lightning.rollout.weight_transport import WeightPart, check_complete, read_part


class Reload:
    """One replacement of all weights of one worker's model."""

    def __init__(self, model: nn.Module, model_config: Any) -> None:
        """`model_config`: vLLM's own."""
        self._model = model
        self._model_config = model_config
        self._missing = {name for name, _ in model.named_parameters()} - tied_heads(model)
        initialize_layerwise_reload(model)

    def load(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Loads a part of the weights; may be called again with others."""
        loaded = self._model.load_weights(weights)  # type: ignore[operator]
        # None: the model does not report its weights.
        self._missing = self._missing - loaded if loaded is not None else set()

    def finish(self) -> list[str]:
        """Puts all in place; returns vLLM's names of missing parameters and half-loaded layers."""
        missing = sorted(self._missing | incomplete_layers(self._model))
        finalize_layerwise_reload(self._model, self._model_config)
        repack_tied(self._model)
        return missing


class WorkerExtension:
    """A base of vLLM's worker (`worker_extension_cls`), whose methods the trainer calls by name."""

    vllm_config: Any
    model_config: Any
    get_model: Callable[[], nn.Module]
    _reload: Reload

    def begin_reload(self) -> None:
        """Begins a replacement of all weights."""
        with self._loading():
            self._reload = Reload(self.get_model(), self.model_config)

    def load_part(self, part: WeightPart) -> None:
        """Loads a part of the weights from shared memory."""
        with self._loading():
            self._reload.load(read_part(part))

    def end_reload(self) -> list[str]:
        """Puts all in place; returns vLLM's names of what was missing, since an error here would leave the
        other workers alone.
        """
        with self._loading():
            return self._reload.finish()

    def reload_all(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Replaces all weights by tensors of this process. Raises EngineError if some were missing."""
        self.begin_reload()
        try:
            with self._loading():
                self._reload.load(weights)
        finally:
            missing = self.end_reload()
        check_complete(missing)

    @contextmanager
    def _loading(self) -> Iterator[None]:
        with torch.inference_mode(), set_current_vllm_config(self.vllm_config):
            yield


def incomplete_layers(model: nn.Module) -> set[str]:
    """Layers with a part of their weights, such as a fused q, k, v without k; not (padded) embeddings."""
    names = set()
    for name, layer in model.named_modules():
        info = get_layerwise_info(layer)
        if (
            info.can_load()
            and not isinstance(layer, VocabParallelEmbedding)
            and 0 < info.load_numel < (info.load_numel_total or 0)
        ):
            names.add(name)
    return names


def tied_heads(model: nn.Module) -> set[str]:
    """Names of parameters that a tied checkpoint lacks: the input embedding under a second name."""
    if not getattr(model.config, "tie_word_embeddings", False):
        return set()
    embeddings = [
        name for name, module in model.named_modules() if isinstance(module, VocabParallelEmbedding)
    ]
    return {f"{name}.weight" for name in embeddings if name.endswith("lm_head")}


def repack_tied(model: nn.Module) -> None:
    """Packs embeddings for CPU kernels again; the reload skips a tied head, which has no tensor."""
    if not current_platform.is_cpu():
        return
    from vllm.model_executor.layers.utils import dispatch_cpu_unquantized_gemm

    for module in model.modules():
        if isinstance(module, VocabParallelEmbedding):
            dispatch_cpu_unquantized_gemm(module, remove_weight=False)
