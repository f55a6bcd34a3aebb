"""Weight transfer to vLLM through shared memory, registered in vLLM's own factory as backend
`bapo_shared_memory`: one machine, no GPU.

Worker's side. It runs inside vLLM's worker, wherever that is: in this process, in a child, behind AsyncLLM or
behind the HTTP server. vLLM imports `WorkerExtension` there by its name, which registers the backend. The
trainer's side: `weight_transport`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory

from bapo_lightning.rollout.vllm.weights import Reload
from bapo_lightning.rollout.weight_transport import SHARED_MEMORY_BACKEND, WeightPart, read_part


@dataclass
class SharedMemoryInit(WeightTransferInitInfo):
    """Init information: none is needed."""


@dataclass
class SharedMemoryUpdate(WeightTransferUpdateInfo):
    """Message with one part of the weights."""

    part: WeightPart


class SharedMemoryTransferEngine(WeightTransferEngine[SharedMemoryInit, SharedMemoryUpdate]):
    """Loads weights from files in shared memory, as the trainer names them."""

    init_info_cls = SharedMemoryInit
    update_info_cls = SharedMemoryUpdate
    missing: list[str]

    def init_transfer_engine(self, init_info: SharedMemoryInit) -> None:
        """Opens nothing."""
        self.missing = []

    def start_weight_update(self) -> None:
        """Begins a replacement of all weights."""
        self._reload = Reload(self.model, self.model_config)

    def receive_weights(self, update_info: SharedMemoryUpdate) -> None:
        """Loads one part."""
        with torch.inference_mode():
            self._reload.load(read_part(update_info.part))

    def finish_weight_update(self) -> None:
        """Puts the weights in place. Missing ones are only noted, for `WorkerExtension.missing_weights`: an
        error here would leave vLLM within the update.
        """
        with torch.inference_mode():
            self.missing = self._reload.finish()

    def shutdown(self) -> None:
        """Releases nothing."""


class WorkerExtension:
    """A base of vLLM's worker (`worker_extension_cls`), whose methods the trainer calls by name."""

    def missing_weights(self) -> list[str]:
        """Weights that the last update did not bring."""
        return self.weight_transfer_engine.missing  # type: ignore[attr-defined]


if SHARED_MEMORY_BACKEND not in WeightTransferEngineFactory._registry:
    WeightTransferEngineFactory.register_engine(SHARED_MEMORY_BACKEND, SharedMemoryTransferEngine)
