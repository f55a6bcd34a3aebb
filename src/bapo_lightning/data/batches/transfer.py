"""Copies from the host to a device that the host does not wait for."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor


def on_device(values: np.ndarray | Tensor, device: torch.device | str) -> Tensor:
    """Returns a copy on the device, or the tensor itself if it is there. To CUDA the copy runs from pinned
    memory during the host's next work; kernels that use it wait for it.
    """
    tensor = torch.from_numpy(values) if isinstance(values, np.ndarray) else values
    if tensor.device.type == "cpu" and torch.device(device).type == "cuda":
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)
