"""Replaces the weights of a running vLLM model, on the worker's side, for every transport.

    begin_reload -> load_part, one part after another -> end_reload -> weight_digests
                    load_transferred, from GPU to GPU

vLLM imports `WorkerExtension` by name wherever its worker runs: in this process, in a child process, or
behind the HTTP server. The trainer's side is `weight_transport`.

vLLM's layerwise reload takes weights under their Hugging Face names, fuses and shards them as at start-up,
and copies them into the tensors that its kernels know, layer by layer, without a second copy of the model.
This module makes up for its gaps: it only logs missing weights, on a CPU it does not update the packed copy
of a tied output head (log-probs are then wrong by 1 to 18 nats) and leaves experts unpacked, and it loses
weights that the loader of GPT-OSS writes directly into parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn
from vllm.config import set_current_vllm_config
from vllm.distributed import get_tensor_model_parallel_rank
from vllm.lora.layers import BaseLayerWithLoRA
from vllm.lora.lora_model import LoRAModel
from vllm.lora.peft_helper import PEFTHelper
from vllm.model_executor.layers.fused_moe.fused_moe_method_base import FusedMoEMethodBase
from vllm.model_executor.layers.layernorm import RMSNorm
from vllm.model_executor.layers.linear import (
    ColumnParallelLinear,
    LinearBase,
    QKVParallelLinear,
    ReplicatedLinear,
    RowParallelLinear,
    UnquantizedLinearMethod,
)
from vllm.model_executor.layers.vocab_parallel_embedding import (
    UnquantizedEmbeddingMethod,
    VocabParallelEmbedding,
)
from vllm.model_executor.model_loader.reload.layerwise import (
    finalize_layerwise_reload,
    get_layerwise_info,
    initialize_layerwise_reload,
)
from vllm.platforms import current_platform

from bapo_lightning.rollout.engine import FACTOR_MARK
from bapo_lightning.rollout.vllm.families import GPT_OSS, experts_apart, let_heads_be_rotated
from bapo_lightning.rollout.vllm.options import ADAPTER_NUMBER, LOADING_ERRORS
from bapo_lightning.rollout.weight_digests import column_digest, drawn_columns, summed
from bapo_lightning.rollout.weight_transport import WeightPart, check_complete, read_part
from bapo_lightning.system.orphans import end_with_parent

Digests = Iterator[tuple[str, torch.Tensor | None]]
TRANSPOSED = ("GPT2LMHeadModel",)  # models whose files have linear weights as [inputs, outputs]
BASE_MARK = ".base_layer."  # in vLLM's names of weights with an adapter
let_heads_be_rotated()  # before the worker, which imports this file, makes its model


class Reload:
    """One replacement of the weights of one worker's model (`with_base`), of its adapter, or of both."""

    def __init__(self, worker: Any, with_base: bool) -> None:
        self._worker = worker
        self._model: nn.Module = worker.get_model()
        self._with_base = with_base
        self._factors: dict[str, torch.Tensor] = {}
        self._missing: dict[str, set[str]] = {}  # all names of a parameter, by its name in files
        self._loaded: set[str] = set()
        if with_base:
            held = list(by_file_name(self._model.named_parameters))
            let_experts_be_packed(self._model)
            initialize_layerwise_reload(self._model)
            # Other parameters are derived from these, such as the products of latent attention.
            loadable = {name for name, _ in self._model.named_parameters(remove_duplicate=False)}
            loadable -= tied_heads(self._model)
            for names, _ in held:
                if targets := [name.replace(BASE_MARK, ".") for name in names if name in loadable]:
                    self._missing[targets[0]] = set(targets)

    def load(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Loads a part of the weights; may be called again with other parts."""
        if not self._with_base:
            self._factors |= {name: factor.cpu().clone() for name, factor in weights}
            return
        loaded = self._model.load_weights(self._without_factors(weights))  # type: ignore[operator]
        if loaded is None:  # the model does not report its weights
            self._missing = {}
            return
        self._loaded |= loaded
        self._missing = {name: names for name, names in self._missing.items() if not names & loaded}

    def finish(self) -> list[str]:
        """Puts all weights in place; returns vLLM's names of missing parameters and half-loaded layers."""
        missing = set(self._missing)
        if self._with_base:
            missing |= incomplete_layers(self._model, self._loaded)
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
            elif type(self._model).__name__ == GPT_OSS:
                yield from experts_apart(name, weight)
            else:
                yield name, weight


class WorkerExtension:
    """A base class of vLLM's worker (`worker_extension_cls`), whose methods the trainer calls by name."""

    vllm_config: Any
    get_model: Callable[[], nn.Module]
    weight_transfer_engine: Any
    _reload: Reload

    def begin_reload(self, with_base: bool) -> None:
        """Begins a replacement of all weights, or of only the adapter."""
        with self._loading():
            self._reload = Reload(self, with_base)

    def end_with_parent(self) -> None:
        """Ends this process together with its parent, vLLM's process."""
        end_with_parent()

    def load_part(self, part: WeightPart) -> str | None:
        """Loads a part from shared memory. Returns a failure as text: after an error of one worker vLLM would
        mistake the others' answers for answers to its next call.
        """
        try:
            with self._loading():
                self._reload.load(read_part(part))
        except LOADING_ERRORS as error:
            return f"{type(error).__name__}: {error}"
        return None

    def load_transferred(self, update_info: dict[str, Any]) -> None:
        """Loads weights from vLLM's own weight transfer, as announced in `update_info`."""
        transfer = self.weight_transfer_engine
        model, transfer.model = transfer.model, SimpleNamespace(load_weights=self._reload.load)
        try:
            with self._loading():
                transfer.update_weights(update_info)
        finally:
            transfer.model = model

    def end_reload(self) -> list[str]:
        """Puts all weights in place; returns vLLM's names of missing ones."""
        with self._loading():
            return self._reload.finish()

    def reload_all(self, weights: Iterable[tuple[str, torch.Tensor]], with_base: bool) -> None:
        """Replaces weights with tensors of this process. Raises EngineError if some were missing."""
        self.begin_reload(with_base)
        try:
            with self._loading():
                self._reload.load(weights)
        finally:
            missing = self.end_reload()
        check_complete(missing)

    def weight_digests(self, seed: int) -> dict[str, int]:
        """Returns digests of this worker's part of the weights."""
        with self._loading():
            return summed(held_digests(self.get_model(), seed))

    @contextmanager
    def _loading(self) -> Iterator[None]:
        with torch.inference_mode(), set_current_vllm_config(self.vllm_config):
            yield


def put_adapter(worker: Any, factors: Mapping[str, torch.Tensor]) -> set[str]:
    """Replaces the worker's only adapter, maybe by none; returns names of layers that vLLM does not adapt."""
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
    # Also clears the manager's memory of the last batch, whose tables a sleep may have dropped.
    adapters.remove_all_adapters()
    adapters.add_adapter(adapter)
    adapters.activate_adapter(ADAPTER_NUMBER)
    return set(adapter.loras) - set(adapters.modules)


def incomplete_layers(model: nn.Module, loaded: set[str]) -> set[str]:
    """Returns layers with only a part of their weights, such as a fused q, k, v without k, and weights that
    the model's loader wrote into tensors that are not kept.
    """
    names = set()
    for name, layer in model.named_modules():
        info = get_layerwise_info(layer)
        # A worker may have only some rows of padded embeddings, or none.
        if not info.can_load() or isinstance(layer, VocabParallelEmbedding):
            continue
        if not info.load_numel:
            parameters = layer.named_parameters(recurse=False)
            names |= loaded & {f"{name}.{last}" for last, weight in parameters if weight.is_meta}
        elif info.load_numel < (info.load_numel_total or 0):
            names.add(name)
    return names


def by_file_name(named: Callable[..., Iterable[tuple[str, Any]]]) -> Iterator[tuple[list[str], Any]]:
    """Yields layers or parameters with all their names. If vLLM has one in several places, the first name is
    the one in files: the shortest, and not a tied head's.
    """
    names: dict[int, list[str]] = {}
    objects = {}
    for name, each in named(remove_duplicate=False):
        names.setdefault(id(each), []).append(name)
        objects[id(each)] = each
    for key, each in objects.items():
        yield sorted(names[key], key=lambda name: ("lm_head" in name, len(name))), each


def tied_heads(model: nn.Module) -> set[str]:
    """Returns names of parameters missing in a tied checkpoint: the input embedding's second name."""
    if not getattr(model.config, "tie_word_embeddings", False):
        return set()
    embeddings = [
        name for name, module in model.named_modules() if isinstance(module, VocabParallelEmbedding)
    ]
    return {f"{name}.weight" for name in embeddings if name.endswith("lm_head")}


def repack_tied(model: nn.Module) -> None:
    """Packs embeddings for CPU kernels again; the reload skips a tied head, which has no own tensor."""
    if not current_platform.is_cpu():
        return
    from vllm.model_executor.layers.utils import dispatch_cpu_unquantized_gemm

    for module in model.modules():
        if isinstance(module, VocabParallelEmbedding):
            dispatch_cpu_unquantized_gemm(module, remove_weight=False)


def let_experts_be_packed(model: nn.Module) -> None:
    """Lets CPU kernels of experts be set up again, since vLLM packs weights only for new kernels."""
    if not current_platform.is_cpu():
        return
    for module in model.modules():
        if isinstance(method := getattr(module, "quant_method", None), FusedMoEMethodBase):
            method.moe_kernel = None


def held_digests(model: nn.Module, seed: int) -> Digests:
    """Yields names and digests of this worker's part of the weights. Weights that may be held with other
    values than were sent have none: all except linear layers, embeddings and norms, and these if they are
    quantized or transposed.
    Weights that several workers hold alike are counted for the first.

    A weight that was packed for a CPU's kernels is read by applying its layer to columns of the identity.
    That is exact in any precision: all products except one are zero.
    """
    embedding = ""  # name of the first embedding
    tied = tied_heads(model)
    is_transposed = type(model).__name__ in TRANSPOSED
    for (name, *_), layer in by_file_name(model.named_modules):
        if _is_plain_linear(layer) and not is_transposed:
            yield from _linear(name, layer, seed)
        elif _is_plain_embedding(layer):
            yield from _embedding(name, layer, seed, embedding if f"{name}.weight" in tied else "")
            embedding = embedding or name
        elif isinstance(layer, RMSNorm) and layer.has_weight:
            if _is_first():
                yield f"{name}.weight", column_digest(layer.weight.reshape(-1, 1), [0])
        elif isinstance(layer, BaseLayerWithLoRA) and isinstance(layer.base_layer, LinearBase):
            yield from _factors(name, layer, seed)
        else:
            for last, _ in layer.named_parameters(recurse=False):
                yield f"{name}.{last}", None


def _is_plain_linear(layer: nn.Module) -> bool:
    """Excludes vLLM's form of a convolution, whose weight has three dimensions."""
    is_unquantized = isinstance(layer, LinearBase) and isinstance(layer.quant_method, UnquantizedLinearMethod)
    return is_unquantized and layer.get_parameter("weight").ndim < 3


def _is_plain_embedding(layer: nn.Module) -> bool:
    return isinstance(layer, VocabParallelEmbedding) and isinstance(
        layer.quant_method, UnquantizedEmbeddingMethod
    )


def _linear(name: str, layer: Any, seed: int) -> Digests:
    rows, (columns, places) = _local_rows(layer), _local_columns(layer, seed)
    held = layer.weight[:, columns] if layer.weight.numel() else _applied(layer, columns, _width(layer))
    yield f"{name}.weight", column_digest(held[rows], places)
    if layer.bias is not None and (isinstance(layer, ColumnParallelLinear) or _is_first()):
        yield f"{name}.bias", column_digest(layer.bias[rows].reshape(-1, 1), [0])
    yield from _corrections(name, layer)


def _corrections(name: str, layer: Any) -> Digests:
    """Yields corrections of a router's choice; buffers may also be vLLM's own."""
    for last, weight in layer.named_parameters(recurse=False):
        if last not in ("weight", "bias"):
            is_known = isinstance(layer, ReplicatedLinear) and weight.ndim == 1
            if not is_known or _is_first():
                yield f"{name}.{last}", column_digest(weight.reshape(-1, 1), [0]) if is_known else None
    for last, _ in layer.named_buffers(recurse=False):
        if last not in layer._non_persistent_buffers_set:
            yield f"{name}.{last}", None


def _embedding(name: str, layer: Any, seed: int, same_as: str) -> Digests:
    drawn, rows = drawn_columns(layer.embedding_dim, seed), layer.shard_indices.num_org_elements
    places = list(range(len(drawn)))
    digest = column_digest(layer.weight[:rows, drawn], places)
    difference = torch.zeros_like(digest)
    if hasattr(layer, "cpu_linear"):  # has a packed copy, with which a head multiplies
        packed = _applied(layer, drawn, layer.embedding_dim)[:rows]
        difference = column_digest(packed, places) - digest
    if same_as:  # a tied head, which has no separate name among the weights that are sent
        yield f"{same_as}.weight", 3 * difference
    else:
        yield f"{name}.weight", digest + 3 * difference


def _factors(name: str, layer: Any, seed: int) -> Digests:
    base, is_row_parallel = layer.base_layer, isinstance(layer.base_layer, RowParallelLinear)
    columns, places = _local_columns(base, seed)
    for part, (down, up) in enumerate(zip(layer.lora_a_stacked, layer.lora_b_stacked, strict=True)):
        if is_row_parallel or _is_first():
            yield f"{name}{FACTOR_MARK}A.weight", column_digest(down[0, 0][:, columns], places)
        if _is_first() or not (is_row_parallel or (part > 0 and _repeats_heads(base))):
            yield f"{name}{FACTOR_MARK}B.weight", column_digest(up[0, 0], list(range(up.shape[-1])))


def _applied(layer: Any, columns: list[int], width: int) -> torch.Tensor:
    """Returns columns [rows, k] of a packed weight with `width` inputs."""
    units = torch.zeros(len(columns), width, dtype=layer.params_dtype)
    units[range(len(columns)), columns] = 1
    held: torch.Tensor = layer.cpu_linear(units, layer.weight, None)
    return held.T


def _local_columns(layer: Any, seed: int) -> tuple[list[int], list[int]]:
    """Returns drawn columns of a layer that this worker holds: their numbers here and places in the draw."""
    width, drawn = _width(layer), drawn_columns(layer.input_size, seed)
    first = layer.tp_rank * width if width < layer.input_size else 0
    places = [place for place, column in enumerate(drawn) if first <= column < first + width]
    return [drawn[place] - first for place in places], places


def _width(layer: Any) -> int:
    return int(getattr(layer, "input_size_per_partition", layer.input_size))


def _local_rows(layer: Any) -> slice:
    """Returns rows of a layer's outputs that no earlier worker holds as well."""
    if _repeats_heads(layer):
        return slice(layer.num_heads * layer.head_size)
    if isinstance(layer, ColumnParallelLinear | RowParallelLinear) or _is_first():
        return slice(None)
    return slice(0)


def _repeats_heads(layer: Any) -> bool:
    """Whether the previous worker has the same heads of keys and values."""
    return isinstance(layer, QKVParallelLinear) and layer.tp_rank % layer.num_kv_head_replicas != 0


def _is_first() -> bool:
    return bool(get_tensor_model_parallel_rank() == 0)
