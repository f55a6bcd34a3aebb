"""Lightning's strategy for a policy that FSDP2 shards."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lightning.pytorch.strategies import ModelParallelStrategy

from bapo_lightning.errors import CheckpointError
from bapo_lightning.modules.fsdp.sharding import Sharding
from bapo_lightning.modules.policy.options import Dtype


class ShardedStrategy(ModelParallelStrategy):
    """Shards one copy of the policy over all ranks, without tensor parallelism."""

    def __init__(
        self,
        compute_dtype: Dtype = "bfloat16",
        reshard_after_forward: bool = True,
        reduce_every_micro_batch: bool = False,
        cpu_offload: bool = False,
        sharded_checkpoints: bool = True,
    ) -> None:
        """The first four options are those of `Sharding`, which becomes the attribute `sharding`.

        Args:
            compute_dtype: precision of forward and backward passes.
            reshard_after_forward: free a layer's gathered weights between forward and backward pass.
            reduce_every_micro_batch: shard gradients after every micro-batch instead of once an update.
            cpu_offload: keep shards in the host's memory.
            sharded_checkpoints: every rank writes its shard into a folder; otherwise rank 0 gathers all
                shards and writes one file.
        """
        super().__init__(tensor_parallel_size=1, save_distributed_checkpoint=sharded_checkpoints)
        self.sharding = Sharding(compute_dtype, reshard_after_forward, cpu_offload, reduce_every_micro_batch)

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
        for name, buffer in self.lightning_module.named_buffers():
            if name.startswith("policy."):
                buffer.data = buffer.data.to(self.root_device)

    def load_checkpoint(self, checkpoint_path: Any, weights_only: bool | None = None) -> dict[str, Any]:
        """Loads a checkpoint from shards or from one file.

        Raises:
            CheckpointError: the checkpoint of a LoRA run is one file, whose optimizer state Lightning would
                give to other weights.
        """
        assert self.lightning_module is not None
        is_partly_frozen = any(
            not parameter.requires_grad for parameter in self.lightning_module.parameters()
        )
        if is_partly_frozen and Path(checkpoint_path).is_file():
            raise CheckpointError(
                f"{checkpoint_path} is one file, from which a LoRA run cannot go on sharded; write "
                "strategy=ddp"
            )
        return super().load_checkpoint(checkpoint_path, weights_only)


def by_position(state: dict[str, Any], names: Sequence[str]) -> None:
    """Changes an optimizer state in place: weights' names, which shards use as keys, become torch's indices.

    Args:
        state: state dict of the optimizer.
        names: names of the trained weights, in the optimizer's order.
    """
    index = {name: number for number, name in enumerate(names)}
    state["state"] = {index.get(key, key): value for key, value in state["state"].items()}
    for group in state["param_groups"]:
        group["params"] = [index.get(key, key) for key in group["params"]]
