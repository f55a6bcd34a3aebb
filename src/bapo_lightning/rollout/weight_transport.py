"""Sends weights to another process through shared memory. `vllm.nccl` sends them between GPUs."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import accumulate, chain
from operator import methodcaller
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypedDict

import torch

from bapo_lightning.rollout.engine import MERGED, Wanted, WeightSource
from bapo_lightning.system.errors import EngineError
from bapo_lightning.system.values import Dtype, Megabytes

if TYPE_CHECKING:  # no client where nothing is served
    from bapo_lightning.rollout.vllm.http import ServerClient

SHARED_MEMORY_FOLDER = Path("/dev/shm")
PREFIX = "bapo-weights-"
ALIGNMENT = 64  # bytes: a view of another dtype must start at a multiple of its size


class WeightTransport(Protocol):
    """Sends all weights to all servers. A (re)started server must be announced with `connect`."""

    backend: ClassVar[str | None]  # vLLM's weight transfer that it uses, if any, which takes no adapters

    def connect(self, client: ServerClient, source: WeightSource, wanted: Wanted) -> None:
        """Prepares a new server."""

    def send(
        self, source: WeightSource, clients: Sequence[ServerClient], version: int, wanted: Wanted
    ) -> None:
        """Replaces the weights of all servers. Raises EngineError if one of them did not get all."""


class WeightPart(TypedDict):
    """Some weights in one file of shared memory."""

    path: str
    num_bytes: int
    names: list[str]
    dtypes: list[str]
    shapes: list[list[int]]
    offsets: list[int]  # bytes from the start of the file


@dataclass(frozen=True)
class SharedMemoryTransport:
    """Writes weights into shared memory in parts; all servers load a part before the next is written."""

    backend: ClassVar[None] = None
    part_megabytes: Megabytes = 256  # size of a part in MiB; a larger tensor is a separate part
    dtype: Dtype | None = None  # dtype to which weights are cast before they are sent; None: the servers'

    def connect(self, client: ServerClient, source: WeightSource, wanted: Wanted) -> None:
        """Does nothing: a new server needs no preparation."""

    def send(
        self, source: WeightSource, clients: Sequence[ServerClient], version: int, wanted: Wanted
    ) -> None:
        """Sends weights to all servers, in the transport's own precision if it has one."""
        wanted = replace(wanted, dtype=self.dtype or wanted.dtype)
        with ThreadPoolExecutor(len(clients)) as pool:

            def call(method: str, *arguments: Any) -> list[Any]:
                return list(chain(*pool.map(methodcaller("call_workers", method, *arguments), clients)))

            send_parts(source, self.part_megabytes, wanted, call)
            list(pool.map(methodcaller("update_weight_version", str(version)), clients))


def send_parts(
    source: WeightSource, part_megabytes: int, wanted: Wanted, call: Callable[..., list[Any]]
) -> None:
    """Lets vLLM's workers load weights in parts through `call`. Raises EngineError if some were missing or
    did not fit.
    """
    call("begin_reload", wanted.content != "adapters")
    try:
        for part in weight_parts(source, part_megabytes, wanted):
            for problem in filter(None, call("load_part", part)):
                raise EngineError(f"vLLM did not take the trainer's weights ({problem})")
    except BaseException:
        with suppress(Exception):  # the first error has the reason
            call("end_reload")
        raise
    check_complete(sorted(set(chain(*call("end_reload")))))


def weight_parts(
    source: WeightSource, part_megabytes: int, wanted: Wanted = MERGED
) -> Generator[WeightPart, None, None]:
    """Writes weights into files of shared memory, each of which exists until the next is requested; at most
    `part_megabytes` [MiB] each, or one larger tensor. Raises EngineError if there is no room.
    """
    remove_abandoned()
    for tensors in in_parts(source.named_weights(wanted), part_megabytes):
        yield from written_part(tensors)


def in_parts(
    weights: Iterable[tuple[str, torch.Tensor]], megabytes: int
) -> Iterator[list[tuple[str, torch.Tensor]]]:
    """Yields named weights on the host, in lists of at most `megabytes` MiB or one larger tensor."""
    part: list[tuple[str, torch.Tensor]] = []
    size = 0
    for name, weight in weights:
        weight = weight.detach().to("cpu").contiguous()
        if part and size + weight.nbytes > megabytes << 20:
            yield part
            part, size = [], 0
        part.append((name, weight))
        size += weight.nbytes
    if part:
        yield part


def written_part(tensors: Sequence[tuple[str, torch.Tensor]]) -> Iterator[WeightPart]:
    """Yields one file of shared memory with tensors, then removes it. Raises EngineError if out of room."""
    sizes = (-(-weight.nbytes // ALIGNMENT) * ALIGNMENT for _, weight in tensors)
    *offsets, num_bytes = accumulate(sizes, initial=0)
    free = shutil.disk_usage(SHARED_MEMORY_FOLDER).free
    if free < num_bytes:
        raise EngineError(
            f"shared memory has {free >> 20} MiB left, a part of the weights needs {num_bytes >> 20}; give "
            "it more (docker run --shm-size) or lower part_megabytes below rollout.engine"
        )
    with tempfile.NamedTemporaryFile(dir=SHARED_MEMORY_FOLDER, prefix=f"{PREFIX}{os.getpid()}-") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        os.truncate(file.name, num_bytes)
        memory = torch.from_file(file.name, shared=True, size=num_bytes, dtype=torch.uint8)
        for (_, weight), offset in zip(tensors, offsets, strict=True):
            memory[offset : offset + weight.nbytes].copy_(weight.view(-1).view(torch.uint8))
        yield WeightPart(
            path=file.name,
            num_bytes=num_bytes,
            names=[name for name, _ in tensors],
            dtypes=[str(weight.dtype).removeprefix("torch.") for _, weight in tensors],
            shapes=[list(weight.shape) for _, weight in tensors],
            offsets=offsets,
        )


def remove_abandoned() -> None:
    """Removes the unlocked files of trainers that were killed while they handed over weights."""
    for path in SHARED_MEMORY_FOLDER.glob(f"{PREFIX}*"):
        with suppress(OSError), path.open("rb") as file:  # another user's, locked, or removed meanwhile
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if path.stat().st_size:  # an empty file may have been made this instant
                path.unlink()


def read_part(part: WeightPart) -> Iterator[tuple[str, torch.Tensor]]:
    """Yields the tensors of a part: views of shared memory that stay valid after the file is removed."""
    memory = torch.from_file(part["path"], shared=True, size=part["num_bytes"], dtype=torch.uint8)
    for name, dtype_name, shape, offset in zip(
        part["names"], part["dtypes"], part["shapes"], part["offsets"], strict=True
    ):
        dtype = getattr(torch, dtype_name)
        count = torch.Size(shape).numel()
        yield name, memory[offset : offset + count * dtype.itemsize].view(dtype).view(shape)


def check_complete(missing: Sequence[str]) -> None:
    """Raises EngineError if weights were missing."""
    if missing:
        raise EngineError(
            f"the weight sync left {len(missing)} weights unset, first {missing[0]!r}: the engine is not "
            "in a usable state"
        )
