"""Meaning of `auto` and null precisions on this machine: for the trainer's passes, the engine, and the
proof that both hold the same weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from typing import Any

import torch
from pydantic import ValidationError

from bapo_lightning.configuration.plan import architecture
from bapo_lightning.configuration.sections import Model
from bapo_lightning.configuration.targets import TARGET
from bapo_lightning.plan.model_shape import model_shape
from bapo_lightning.system.errors import DataError
from bapo_lightning.system.ranks.rank_group import uses_cuda
from bapo_lightning.system.values import FULL, MIXED

AUTO = "auto"
# Parameters. For a smaller model casts cost more than faster products save (docs/results/precision.md).
SMALLEST_MODEL = 50_000_000
TOLERANCE = {"float32": 1e-3}  # nats, mean over a probe's tokens, if both sides compute in it
HALF_TOLERANCE = 0.2  # if one of them rounds to 16 bits


def settled(plain: dict[str, Any], for_gpus: bool = False) -> dict[str, Any]:
    """The resolved configuration with every precision by name; a configuration with other mistakes stays as
    it is. With `for_gpus` the precisions are those for GPUs, whatever this machine has.
    """
    plain = deepcopy(plain)
    trainer, rollout = plain.get("trainer"), plain.get("rollout")
    if isinstance(trainer, dict) and trainer.get("precision") == AUTO:
        trainer["precision"] = MIXED if _gains(plain, for_gpus) else FULL
    if not isinstance(rollout, Mapping) or not isinstance(engine := rollout.get("engine"), Mapping):
        return plain
    is_mixed = isinstance(trainer, Mapping) and trainer.get("precision") == MIXED
    on_gpu = for_gpus or (isinstance(trainer, Mapping) and uses_cuda(str(trainer.get("accelerator"))))
    model, sync = plain.get("model"), rollout.get("weight_sync")
    trained = str((isinstance(model, Mapping) and model.get("dtype")) or "float32")
    dtypes = {_settle_engine(engine, is_mixed, on_gpu), MIXED if is_mixed else trained}
    if isinstance(sync, dict) and sync.get("tolerance", 0) is None:
        sync["tolerance"] = TOLERANCE["float32"] if dtypes == {"float32"} else HALF_TOLERANCE
    return plain


def _gains(plain: dict[str, Any], for_gpus: bool) -> bool:
    """Passes are mixed, with trained weights in float32, if they are sharded or if it is faster."""
    model, strategy = plain.get("model"), plain.get("strategy")
    if not isinstance(model, Mapping) or (model.get("dtype") != "float32" and model.get("lora") is None):
        return False
    if isinstance(strategy, Mapping) and str(strategy.get(TARGET)).endswith("ShardedStrategy"):
        return True
    if not (for_gpus or _multiplies_faster(str(plain["trainer"].get("accelerator")))):
        return False
    try:
        shape = model_shape(architecture(Model.read(model)))
    except (ValidationError, DataError):  # reported by the rules of the model
        return False
    return shape.num_parameters >= SMALLEST_MODEL


def _multiplies_faster(accelerator: str) -> bool:
    """Whether the device multiplies bfloat16 matrices in hardware."""
    if uses_cuda(accelerator):
        return torch.cuda.is_bf16_supported(including_emulation=False)
    return torch.cpu._is_amx_tile_supported() or torch.cpu._is_avx512_bf16_supported()


def _settle_engine(engine: Mapping[str, Any], is_mixed: bool, on_gpu: bool) -> str:
    node = engine.get("make_engine", engine)
    options = node.get("options") if isinstance(node, Mapping) else None
    if isinstance(options, dict):  # vLLM
        if options.get("dtype", 0) is None:
            options["dtype"] = "bfloat16" if on_gpu or is_mixed else "float32"
        return str(options.get("dtype", "float32"))
    if isinstance(node, dict) and node.get("dtype", 0) is None:
        node["dtype"] = MIXED if is_mixed else "float32"
    return str(node.get("dtype", "float32")) if isinstance(node, Mapping) else "float32"
