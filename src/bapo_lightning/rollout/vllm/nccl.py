"""Sends weights from the trainer's GPUs to GPUs of vLLM servers, by vLLM's own NCCL weight transfer. Control
calls go over HTTP to `weights.WorkerExtension`, so that workers load as from shared memory and report missing
weights.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any, ClassVar, cast

import torch
import torch.distributed as dist
from vllm.distributed.weight_transfer.base import ParamMeta
from vllm.distributed.weight_transfer.base import WeightSource as VLLMWeightSource
from vllm.distributed.weight_transfer.factory import WeightTransferTrainerFactory
from vllm.distributed.weight_transfer.nccl_engine import NCCLTrainerInitInfo
from vllm.utils.network_utils import get_open_port

from bapo_lightning.rollout.engine import MERGED, MeasuredWeights, Wanted, WeightSource
from bapo_lightning.rollout.vllm.http import ServerClient
from bapo_lightning.rollout.weight_transport import check_complete
from bapo_lightning.system.values import Dtype


@dataclass
class NCCLTransport:
    """Broadcasts weights from the trainer's first rank to the workers of one server after another."""

    backend: ClassVar[str] = "nccl"
    master_address: str = "127.0.0.1"  # of this machine, as seen by the servers
    dtype: Dtype | None = None  # dtype to which weights are cast before they are sent; None: the servers'
    _engines: dict[int, Any] = field(default_factory=dict, init=False)  # vLLM's trainer engine per client

    def connect(self, client: ServerClient, source: WeightSource, wanted: Wanted) -> None:
        """Connects a new server in place of this client's previous server."""
        previous = self._engines.pop(id(client), None)
        if previous is not None:
            previous.shutdown()
        rank = dist.get_rank() if dist.is_initialized() else 0
        info = NCCLTrainerInitInfo(
            self.master_address, get_open_port(), 1 + client.get_world_size(), rank=rank
        )
        control = WorkerControl(client)
        control.sender = self._engines[id(client)] = WeightTransferTrainerFactory.trainer_init(
            info, client=control, source=StreamedWeights(source, wanted)
        )

    def send(
        self, source: WeightSource, clients: Sequence[ServerClient], version: int, wanted: Wanted
    ) -> None:
        """Sends weights to all servers. A server that did not get all must be connected again."""
        weights = StreamedWeights(source, replace(wanted, dtype=self.dtype or wanted.dtype))
        for client in clients:
            engine = self._engines.pop(id(client))
            engine.source = weights  # the present one: a collective source serves one sync
            try:
                engine.send_weights()
            except BaseException:
                engine.shutdown()
                raise
            self._engines[id(client)] = engine
            client.update_weight_version(str(version))


@dataclass(eq=False)
class WorkerControl:
    """The control calls of vLLM's trainer engine (`VLLMWeightSyncClient`) to one server."""

    client: ServerClient
    sender: Any = None  # vLLM's trainer engine

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        """Lets the workers join the trainer's group."""
        self.client.init_weight_transfer_engine(init_info)

    def start_weight_update(self) -> None:
        """Begins a replacement of all weights."""
        self.client.call_workers("begin_reload", True)

    def update_weights(self, update_info: dict[str, Any]) -> None:
        """Lets the workers receive the broadcast. If they cannot, aborts it, as it would wait forever."""
        try:
            self.client.call_workers("load_transferred", update_info)
        except BaseException:
            self.sender.shutdown()
            raise

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        """Puts the weights in place. Raises EngineError if some were missing."""
        check_complete(sorted(set(chain(*self.client.call_workers("end_reload")))))


class StreamedWeights(VLLMWeightSource):
    """Our weight source as vLLM's, which needs names, types and shapes before the weights."""

    def __init__(self, source: WeightSource, wanted: Wanted = MERGED) -> None:
        self._source = cast(MeasuredWeights, source)
        self._wanted = wanted

    def metadata(self) -> list[ParamMeta]:
        """Returns names, types and shapes, without a pass over the weights."""
        dtype = getattr(torch, self._wanted.dtype) if self._wanted.dtype else None
        return [
            ParamMeta(name, dtype or kind, tuple(shape)) for name, kind, shape in self._source.weight_shapes()
        ]

    def __iter__(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yields weights on the GPU, from which they are sent; an offloaded policy has them on the host."""
        for name, weight in self._source.named_weights(self._wanted):
            yield name, weight.cuda() if torch.cuda.is_available() else weight
