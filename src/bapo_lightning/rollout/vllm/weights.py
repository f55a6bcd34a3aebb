"""Replacement of the weights of a running vLLM model, on the worker's side, for every transport.

    begin_reload -> load_part, one part after the other -> end_reload -> weight_digests
                    load_transferred, from GPU to GPU

vLLM imports `WorkerExtension` by its name wherever its worker runs: in this process, in one below it, or
behind the HTTP server. The trainer's side is `weight_transport`.

vLLM's layerwise reload takes weights under their Hugging Face names, fuses and shards them as at start-up,
and copies them into the tensors that its kernels know, layer by layer: no second copy of the model. Two
things it does not do are done here: it only logs what was missing, and on a CPU it leaves the packed copy of
a tied output head as it was (log-probs are then wrong by 1 to 18 nats).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn
from vllm.config import set_current_vllm_config
from vllm.lora.lora_model import LoRAModel
from vllm.lora.peft_helper import PEFTHelper
from vllm.model_executor.layers.vocab_parallel_embedding import VocabParallelEmbedding
from vllm.model_executor.model_loader.reload.layerwise import (
    finalize_layerwise_reload,
    get_layerwise_info,
    initialize_layerwise_reload,
)
from vllm.platforms import current_platform

from bapo_lightning.orphans import end_with_parent
from bapo_lightning.rollout.engine import FACTOR_MARK
from bapo_lightning.rollout.vllm.digests import held_digests
from bapo_lightning.rollout.vllm.options import ADAPTER_NUMBER, LOADING_ERRORS
from bapo_lightning.rollout.weight_digests import summed
from bapo_lightning.rollout.weight_transport import WeightPart, check_complete, read_part

BASE_MARK = ".base_layer."  # in vLLM's names of weights to which an adapter adds


class Reload:
    """One replacement of the weights of one worker's model, of its adapter, or of both."""

    def __init__(self, worker: Any, with_base: bool) -> None:
        """`worker`: vLLM's. `with_base`: all weights come, and not the factors of the adapter alone."""
        self._worker = worker
        self._model: nn.Module = worker.get_model()
        self._with_base = with_base
        self._factors: dict[str, torch.Tensor] = {}
        self._missing: set[str] = set()
        if with_base:
            held = {name.replace(BASE_MARK, ".") for name, _ in self._model.named_parameters()}
            self._missing = held - tied_heads(self._model)
            initialize_layerwise_reload(self._model)

    def load(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Loads a part of the weights; may be called again with others."""
        if not self._with_base:
            self._factors |= {name: factor.cpu().clone() for name, factor in weights}
            return
        loaded = self._model.load_weights(self._without_factors(weights))  # type: ignore[operator]
        # None: the model does not report its weights.
        self._missing = self._missing - loaded if loaded is not None else set()

    def finish(self) -> list[str]:
        """Puts all in place; returns vLLM's names of missing parameters and half-loaded layers."""
        missing = self._missing
        if self._with_base:
            missing = missing | incomplete_layers(self._model)
            finalize_layerwise_reload(self._model, self._worker.model_config)
            repack_tied(self._model)
        if self._worker.vllm_config.lora_config is not None:
            missing = missing | put_adapter(self._worker, self._factors)
        else:
            missing = missing | self._factors.keys()
        return sorted(missing)

    def _without_factors(
        self, weights: Iterable[tuple[str, torch.Tensor]]
    ) -> Iterator[tuple[str, torch.Tensor]]:
        for name, weight in weights:
            if FACTOR_MARK in name:
                self._factors[name] = weight.cpu().clone()
            else:
                yield name, weight


class WorkerExtension:
    """A base of vLLM's worker (`worker_extension_cls`), whose methods the trainer calls by name."""

    vllm_config: Any
    get_model: Callable[[], nn.Module]
    weight_transfer_engine: Any
    _reload: Reload

    def begin_reload(self, with_base: bool) -> None:
        """Begins a replacement of all weights, or of the adapter alone."""
        with self._loading():
            self._reload = Reload(self, with_base)

    def end_with_parent(self) -> None:
        """Ends this process with vLLM's above it."""
        end_with_parent()

    def load_part(self, part: WeightPart) -> str | None:
        """Loads a part of the weights from shared memory. Returns what went wrong: after an error of one
        worker vLLM would take the others' answers for those to its next call.
        """
        try:
            with self._loading():
                self._reload.load(read_part(part))
        except LOADING_ERRORS as error:
            return f"{type(error).__name__}: {error}"
        return None

    def load_transferred(self, update_info: dict[str, Any]) -> None:
        """Loads weights that vLLM's own weight transfer brings, as `update_info` announces them."""
        transfer = self.weight_transfer_engine
        model, transfer.model = transfer.model, SimpleNamespace(load_weights=self._reload.load)
        try:
            with self._loading():
                transfer.update_weights(update_info)
        finally:
            transfer.model = model

    def end_reload(self) -> list[str]:
        """Puts all in place; returns vLLM's names of what was missing."""
        with self._loading():
            return self._reload.finish()

    def reload_all(self, weights: Iterable[tuple[str, torch.Tensor]], with_base: bool) -> None:
        """Replaces weights by tensors of this process. Raises EngineError if some were missing."""
        self.begin_reload(with_base)
        try:
            with self._loading():
                self._reload.load(weights)
        finally:
            missing = self.end_reload()
        check_complete(missing)

    def weight_digests(self, seed: int) -> dict[str, int]:
        """Digests of this worker's part of the weights."""
        with self._loading():
            return summed(held_digests(self.get_model(), seed))

    @contextmanager
    def _loading(self) -> Iterator[None]:
        with torch.inference_mode(), set_current_vllm_config(self.vllm_config):
            yield


def put_adapter(worker: Any, factors: Mapping[str, torch.Tensor]) -> set[str]:
    """Replaces the worker's only adapter, by one that adds nothing where there are no factors. Returns names
    of layers that vLLM does not adapt.
    """
    manager = worker.model_runner.lora_manager
    adapters = manager._adapter_manager
    rank = max((factor.shape[0] for name, factor in factors.items() if name.endswith("A.weight")), default=1)
    mapper = getattr(adapters.model, "hf_to_vllm_mapper", None)
    adapter = LoRAModel.from_lora_tensors(
        ADAPTER_NUMBER,
        {f"base_model.model.{name}": factor for name, factor in factors.items()},
        PEFTHelper(r=rank, lora_alpha=rank, target_modules=[]),
        device="cpu",
        dtype=manager.lora_config.lora_dtype,
        weights_mapper=mapper.get_rename_mapper() if mapper is not None else None,
    )
    # Also what the manager remembers of the last batch, whose tables a sleep may have dropped.
    adapters.remove_all_adapters()
    adapters.add_adapter(adapter)
    adapters.activate_adapter(ADAPTER_NUMBER)
    return set(adapter.loras) - set(adapters.modules)


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
