"""Shards a policy over the ranks by FSDP2, sums and clips gradients over ranks, and Lightning's strategy.

Units are the decoder layers, the embedding, the head, and the policy itself with all that is left, such as
the final norm. The head's gradient is reduced during the backward pass, the policy's after it. A weight that
embedding and head share is left to the policy, since its gradient is the last one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, cast

import lightning as L
import torch
from lightning.fabric.utilities.device_dtype_mixin import _update_properties
from lightning.pytorch.strategies import ModelParallelStrategy
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    FSDPModule,
    MixedPrecisionPolicy,
    OffloadPolicy,
    fully_shard,
    register_fsdp_forward_method,
)

from bapo_lightning.system.errors import CheckpointError
from bapo_lightning.system.ranks.collectives import full_tensor, num_ranks

T = TypeVar("T")
WITH_WEIGHT = "with_weight"  # method of a head that is a unit


@dataclass(frozen=True)
class Sharding:
    """How a policy is sharded."""

    # False keeps a layer's weights from forward to backward pass: less traffic, more memory.
    reshard_after_forward: bool = True
    cpu_offload: bool = False  # keep shards, gradients and optimizer state in the host's memory
    # True shards gradients after every micro-batch, so that no rank ever holds all of them.
    reduce_every_micro_batch: bool = False

    def shard(
        self, policy: nn.Module, layers: Iterable[nn.Module], mesh: DeviceMesh, is_mixed: bool = False
    ) -> None:
        """Shards `policy` in place over `mesh`, each layer as a unit. Gradients are reduced in float32. The
        head stays gathered from forward to backward pass, which begins with it; an embedding of its own is
        not gathered for the backward pass, which does not read it.

        With `is_mixed` passes compute in bfloat16; parameters, gradients and optimizer state keep their
        precision.
        """
        offload = CPUOffloadPolicy(pin_memory=mesh.device_type == "cuda")  # only CUDA can pin memory
        options: dict[str, Any] = {
            "mesh": mesh,
            "reshard_after_forward": self.reshard_after_forward,
            "mp_policy": MixedPrecisionPolicy(
                param_dtype=torch.bfloat16 if is_mixed else None, reduce_dtype=torch.float32
            ),
            "offload_policy": offload if self.cpu_offload else OffloadPolicy(),
        }
        for layer in layers:
            fully_shard(layer, **options)
        model = cast(Any, policy.model)
        embedding, head = model.get_input_embeddings(), model.get_output_embeddings()
        if embedding.weight is not head.weight:
            fully_shard(embedding, **options | {"reshard_after_forward": True})
            embedding.set_unshard_in_backward(False)
            as_given = replace(options["mp_policy"], cast_forward_inputs=False)
            fully_shard(head, **options | {"reshard_after_forward": False, "mp_policy": as_given})
            setattr(head, WITH_WEIGHT, partial(_with_weight, head))
            register_fsdp_forward_method(head, WITH_WEIGHT)
        fully_shard(policy, **options | {"reshard_after_forward": False})


def with_weight(head: nn.Module, compute: Callable[[Tensor, Tensor], T], hidden: Tensor) -> T:
    """Returns `compute` of the head's weight and hidden states, as the head's forward pass: FSDP gathers the
    weight before it, and reduces its gradient as soon as `hidden` has one.
    """
    result: T = getattr(head, WITH_WEIGHT, partial(_with_weight, head))(compute, hidden)
    return result


def _with_weight(head: nn.Module, compute: Callable[[Tensor, Tensor], T], hidden: Tensor) -> T:
    return compute(cast(Tensor, head.weight), hidden)


def reshard(module: nn.Module) -> None:
    """Frees gathered weights after a forward pass without backward pass: an update would not reach them."""
    for part in module.modules():
        if isinstance(part, FSDPModule):
            part.reshard()


def clip_gradients(parameters: Iterable[nn.Parameter], max_norm: float) -> float:
    """Scales gradients down to `max_norm` over all parameters of all ranks. Returns the previous norm."""
    norm = torch.nn.utils.clip_grad_norm_(parameters, max_norm)
    return float(full_tensor(norm))


def gradient_sync(module: L.LightningModule, when: bool) -> AbstractContextManager[None]:
    """Returns a context for a backward pass that sums gradients over ranks or, with `when=False`, leaves the
    sum to a later pass.
    """
    policy = module.policy
    if isinstance(policy, FSDPModule):  # which keeps the setting until the next pass
        when = when or cast(Sharding, module.sharding).reduce_every_micro_batch
        policy.set_requires_gradient_sync(when)
        policy.set_is_last_backward(when)
    elif num_ranks() > 1 and not when:
        return module.trainer.strategy.block_backward_sync()  # type: ignore[attr-defined]
    return nullcontext()


class ShardedStrategy(ModelParallelStrategy):
    """Shards one copy of the policy over all ranks, without tensor parallelism."""

    def __init__(
        self,
        reshard_after_forward: bool = True,
        reduce_every_micro_batch: bool = False,
        cpu_offload: bool = False,
        sharded_checkpoints: bool = True,
    ) -> None:
        """The first three options belong to `Sharding`, which becomes the attribute `sharding`. With
        `sharded_checkpoints` every rank writes its shard into a folder; otherwise rank 0 gathers all shards
        and writes one file.
        """
        super().__init__(tensor_parallel_size=1, save_distributed_checkpoint=sharded_checkpoints)
        self.sharding = Sharding(reshard_after_forward, cpu_offload, reduce_every_micro_batch)

    def setup_environment(self) -> None:
        """Shards over all ranks of all nodes; Lightning's own default is one shard per node."""
        self._data_parallel_size = self.num_nodes * self.num_processes
        super().setup_environment()

    def model_to_device(self) -> None:
        """Moves the module to the device, except for shards that stay in the host's memory."""
        if not self.sharding.cpu_offload:
            super().model_to_device()
            return
        assert self.lightning_module is not None
        for name, part in self.lightning_module.named_children():
            if name != "policy":
                part.to(self.root_device)
        _update_properties(self.lightning_module, device=self.root_device)  # as `to` does with the weights
        self.lightning_module.policy.compute_on(self.root_device)  # type: ignore[operator, union-attr]

    def load_checkpoint(self, checkpoint_path: Any, weights_only: bool | None = None) -> dict[str, Any]:
        """Loads a checkpoint from shards or from one file. Raises CheckpointError if a LoRA run's checkpoint
        is one file, whose optimizer state Lightning would assign to the wrong weights.
        """
        assert self.lightning_module is not None
        is_partly_frozen = any(
            not parameter.requires_grad for parameter in self.lightning_module.parameters()
        )
        if is_partly_frozen and Path(checkpoint_path).is_file():
            raise CheckpointError(
                f"{checkpoint_path} is one file, from which a sharded LoRA run cannot continue; write "
                "strategy=ddp"
            )
        return super().load_checkpoint(checkpoint_path, weights_only)


def by_position(state: dict[str, Any], names: Sequence[str]) -> None:
    """Changes an optimizer's state in place: weights' names, which shards use as keys, become torch's
    indices, by the `names` of the trained weights in the optimizer's order.
    """
    index = {name: number for number, name in enumerate(names)}
    state["state"] = {index.get(key, key): value for key, value in state["state"].items()}
    for group in state["param_groups"]:
        group["params"] = [index.get(key, key) for key in group["params"]]
