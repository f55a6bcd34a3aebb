"""Lightning's strategy for a policy that is sharded by FSDP2."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lightning.pytorch.strategies import ModelParallelStrategy

from bapo_lightning.errors import CheckpointError


class ShardedStrategy(ModelParallelStrategy):
    """All ranks shard one copy of the policy; no tensor parallelism."""

    def __init__(self, num_ranks: int, sharded_checkpoints: bool, cpu_offload: bool) -> None:
        """
        Args:
            num_ranks: of the run.
            sharded_checkpoints: every rank writes its shard, into a folder; else the leader gathers all into
                one file.
            cpu_offload: shards stay in the host's memory.
        """
        super().__init__(
            data_parallel_size=num_ranks,
            tensor_parallel_size=1,
            save_distributed_checkpoint=sharded_checkpoints,
        )
        self._cpu_offload = cpu_offload

    def model_to_device(self) -> None:
        """Move what is not there yet; shards that wait in the host's memory must stay."""
        if not self._cpu_offload:
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
        """Load, from shards or from one file.

        Raises:
            CheckpointError: a file of a LoRA run, whose optimizer state Lightning would give to other
                weights.
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
    """Turn an optimizer state that goes by weights' names, as shards have it, into torch's, which goes by
    places among `names`.
    """
    place = {name: index for index, name in enumerate(names)}
    state["state"] = {place.get(key, key): value for key, value in state["state"].items()}
    for group in state["param_groups"]:
        group["params"] = [place.get(key, key) for key in group["params"]]
