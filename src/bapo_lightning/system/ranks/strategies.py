"""Lightning strategies that a run can name."""

from __future__ import annotations

from inspect import signature
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lightning.pytorch.strategies import DDPStrategy


def single_device() -> str:
    """Returns Lightning's own choice for one process with one device."""
    return "auto"


def data_parallel(**options: Any) -> DDPStrategy:
    """Returns Lightning's DDP; buffers are not synchronized: training changes none of the policy's."""
    from lightning.pytorch.strategies import DDPStrategy
    from torch.nn.parallel import DistributedDataParallel

    known = signature(DistributedDataParallel).parameters
    name = "forward_sync_buffers" if "forward_sync_buffers" in known else "broadcast_buffers"  # torch 2.11
    return DDPStrategy(**{name: False, **options})
