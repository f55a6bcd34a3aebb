"""Weights from the trainer's GPUs to other GPUs of vLLM servers, by vLLM's own NCCL weight transfer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from vllm.distributed.weight_transfer.base import ParamMeta
from vllm.distributed.weight_transfer.base import WeightSource as VLLMWeightSource
from vllm.distributed.weight_transfer.factory import WeightTransferTrainerFactory
from vllm.distributed.weight_transfer.nccl_engine import NCCLTrainerInitInfo
from vllm.utils.network_utils import get_open_port

from bapo_lightning.rollout.engine import MERGED, Wanted, WeightSource
from bapo_lightning.rollout.vllm.http import ServerClient
from bapo_lightning.values import Dtype


@dataclass
class NCCLTransport:
    """Broadcasts weights tensor by tensor, in packed buffers, from the trainer's first rank to every worker
    of each server.

    Servers are served one after the other. A broadcast whose receiver died cannot be interrupted; vLLM's
    control calls have a deadline.
    """

    backend: ClassVar[str] = "nccl"
    master_address: str = "127.0.0.1"  # of this machine, for the servers
    dtype: Dtype | None = None  # weights are cast to it before they are sent; None: the servers' own
    _engines: dict[int, Any] = field(default_factory=dict, init=False)  # vLLM's trainer engine of each client

    def connect(self, client: ServerClient, source: WeightSource, wanted: Wanted) -> None:
        """Connects a new server, instead of the one that this client had before."""
        previous = self._engines.pop(id(client), None)
        if previous is not None:
            previous.shutdown()
        rank = dist.get_rank() if dist.is_initialized() else 0
        info = NCCLTrainerInitInfo(
            self.master_address, get_open_port(), 1 + client.get_world_size(), rank=rank
        )
        self._engines[id(client)] = WeightTransferTrainerFactory.trainer_init(
            info,
            client=client,
            source=StreamedWeights(source, replace(wanted, dtype=self.dtype or wanted.dtype)),
        )

    def send(
        self, source: WeightSource, clients: Sequence[ServerClient], version: int, wanted: Wanted
    ) -> None:
        """Stamps the version after each update: vLLM's engine ends an update without one."""
        for client in clients:
            self._engines[id(client)].send_weights()
            client.update_weight_version(str(version))


class StreamedWeights(VLLMWeightSource):
    """Our weight source as vLLM's, which needs names, types and shapes before the weights come."""

    def __init__(self, source: WeightSource, wanted: Wanted = MERGED) -> None:
        """`wanted`: their form."""
        self._source = source
        self._wanted = wanted
        self._metadata: list[ParamMeta] | None = None

    def metadata(self) -> list[ParamMeta]:
        """Names, types and shapes, from one pass over the weights; they do not change."""
        if self._metadata is None:
            self._metadata = [ParamMeta(name, weight.dtype, tuple(weight.shape)) for name, weight in self]
        return self._metadata

    def __iter__(self) -> Iterator[tuple[str, torch.Tensor]]:
        return self._source.named_weights(self._wanted)
