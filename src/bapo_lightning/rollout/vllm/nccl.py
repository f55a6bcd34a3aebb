"""Weights from the trainer's GPUs to other GPUs of vLLM servers, by vLLM's own NCCL weight transfer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from vllm.distributed.weight_transfer.base import ParamMeta
from vllm.distributed.weight_transfer.base import WeightSource as VLLMWeightSource
from vllm.distributed.weight_transfer.factory import WeightTransferTrainerFactory
from vllm.distributed.weight_transfer.nccl_engine import NCCLTrainerInitInfo
from vllm.utils.network_utils import get_open_port

from bapo_lightning.rollout.engine import DType, WeightSource
from bapo_lightning.rollout.vllm.http import ServerClient


class NCCLTransport:
    """Broadcasts weights tensor by tensor, in packed buffers, from the trainer's first rank to every worker
    of each server.

    Servers are served one after the other. A broadcast whose receiver died cannot be interrupted; vLLM's
    control calls have a deadline.
    """

    backend = "nccl"

    def __init__(self, master_address: str = "127.0.0.1", dtype: DType | None = None) -> None:
        """
        Args:
            master_address: address of this machine for the servers.
            dtype: weights are cast to it before they are sent; None sends them as they are.
        """
        self._master_address = master_address
        self._dtype = getattr(torch, dtype) if dtype else None
        self._engines: dict[int, Any] = {}  # vLLM's trainer engine of each client

    def connect(self, client: ServerClient, source: WeightSource) -> None:
        """See `WeightTransport.connect`."""
        previous = self._engines.pop(id(client), None)
        if previous is not None:
            previous.shutdown()
        rank = dist.get_rank() if dist.is_initialized() else 0
        info = NCCLTrainerInitInfo(
            self._master_address, get_open_port(), 1 + client.get_world_size(), rank=rank
        )
        self._engines[id(client)] = WeightTransferTrainerFactory.trainer_init(
            info, client=client, source=StreamedWeights(source, self._dtype)
        )

    def send(self, source: WeightSource, clients: Sequence[ServerClient], version: int) -> None:
        """Stamps the version after each update: vLLM's engine ends an update without one."""
        for client in clients:
            self._engines[id(client)].send_weights()
            client.update_weight_version(str(version))


class StreamedWeights(VLLMWeightSource):
    """Our weight source as vLLM's, which needs names, types and shapes before the weights come."""

    def __init__(self, source: WeightSource, dtype: torch.dtype | None = None) -> None:
        """`dtype`: weights are cast to it; None leaves them as they are."""
        self._source = source
        self._dtype = dtype
        self._metadata: list[ParamMeta] | None = None

    def metadata(self) -> list[ParamMeta]:
        """Names, types and shapes, from one pass over the weights; they do not change."""
        if self._metadata is None:
            self._metadata = [ParamMeta(name, weight.dtype, tuple(weight.shape)) for name, weight in self]
        return self._metadata

    def __iter__(self) -> Iterator[tuple[str, torch.Tensor]]:
        for name, weight in self._source.named_weights():
            yield name, weight.to(self._dtype or weight.dtype)
