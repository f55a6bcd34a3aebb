"""Stage `machine`: what a run needs of driver, compiler, memory, links, disk and hub before it starts."""

from __future__ import annotations

import math
import os
import re
import resource
import shutil
import socket
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from bapo_lightning.callbacks.run_checkpoint import DirectCheckpointIO
from bapo_lightning.system.host import answer, driver_version, has_nvidia_gpu, missing_to_build, unused_gpu
from bapo_lightning.system.hub import stay_offline_without_hub
from bapo_lightning.system.ranks.launch import RankPlace, free_port
from bapo_lightning.system.ranks.rank_group import join
from gpu.checks import FILES, Check, Finding, Machine, at_least, empty_folder, holds, measured, skipped

SHARED_MEMORY = Path("/dev/shm")
SHARED = 1.0  # GB, for NCCL and for weights on their way to servers; Docker gives 0.06
INFINIBAND = Path("/sys/class/infiniband")
# GB/s of a copy, and of an all-reduce: half of the slowest NVLink, and of eight lanes of PCIe 3.
LINKED, UNLINKED = 25.0, 4.0
GLOO = 0.1  # GB/s: the 1 GB that ranks tell each other in an update of 7B then takes 10 s
# GB/s, and GB: the 91 of a checkpoint of bapo_7b in five minutes.
DISK, ROOM = 0.3, 91.0


def driver(machine: Machine) -> Iterator[Finding]:
    """Torch uses the GPUs that are in the machine."""
    if has_nvidia_gpu():
        problem = unused_gpu()
        yield holds("torch uses the GPUs", problem is None, problem or f"driver {driver_version()}")
    else:
        yield skipped("torch uses the GPUs", "needs a GPU")


def host(machine: Machine) -> Iterator[Finding]:
    """Compilers, which Triton needs when vLLM starts; shared memory; memory that may be locked."""
    missing = missing_to_build("C") or missing_to_build("C++")
    yield holds("compilers and Python.h", missing is None, missing or "")
    if SHARED_MEMORY.is_dir():  # on Linux
        shared = shutil.disk_usage(SHARED_MEMORY).free / 1e9
        yield at_least(f"{SHARED_MEMORY}", shared, SHARED, "GB", "containers: --shm-size=16g, or --ipc=host")
    limit = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    lockable = math.inf if limit == resource.RLIM_INFINITY else limit / 1e9
    if INFINIBAND.is_dir() and any(INFINIBAND.iterdir()):
        yield at_least("lockable memory", lockable, math.inf, "GB", "InfiniBand: ulimit -l unlimited")
    else:
        yield measured("lockable memory", lockable, "GB", "only InfiniBand needs it: none here")


def has_nvlink() -> bool:
    """Whether the driver knows of NVLinks between GPUs."""
    return re.search(r"\bNV\d", answer("nvidia-smi", "topo", "-m")) is not None


def links(machine: Machine) -> Iterator[Finding]:
    """Which GPUs reach each other's memory, and the slowest copy between two."""
    count = torch.cuda.device_count()
    pairs = [(one, other) for one in range(count) for other in range(count) if one != other]
    closed = [f"{one}-{other}" for one, other in pairs if not torch.cuda.can_device_access_peer(one, other)]
    title, note = "pairs of GPUs without access to each other", ", ".join(closed)
    linked = has_nvlink()
    yield holds("GPUs with NVLink reach each other", not (linked and closed), f"{title}: {note or 'none'}")
    slowest = math.inf
    for one, other in pairs:
        source = torch.empty(1 << 28, dtype=torch.uint8, device=f"cuda:{one}")
        target = torch.empty_like(source, device=f"cuda:{other}")

        def copy(source: torch.Tensor = source, target: torch.Tensor = target) -> None:
            target.copy_(source)
            torch.cuda.synchronize(target.device)

        slowest = min(slowest, len(source) / machine.seconds(copy) / 1e9)
    yield at_least("slowest copy between two GPUs", slowest, LINKED if linked else UNLINKED, "GB/s")


def reduce_in(rank: int, size: int, accelerator: str, port: int, count: int, answers: Any) -> None:
    """Joins the ranks as a run does, and times all-reduces of `count` float32 numbers."""
    os.environ |= RankPlace(rank, size, rank, size, 0, "127.0.0.1", port).variables
    group = join(accelerator, size, 1, 5.0, needs_group=True)
    numbers = torch.ones(count, device="cuda" if accelerator == "gpu" else "cpu")
    taken = []
    for _ in range(4):
        numbers.fill_(1.0)
        group.barrier()
        start = time.perf_counter()
        dist.all_reduce(numbers)
        is_right = numbers[-1].item() == size  # waits for the device
        taken.append(time.perf_counter() - start if is_right else math.inf)
    if group.is_controller:
        answers.put(min(taken[1:]) if max(taken) < math.inf else math.inf)
    group.close()


def all_reduce(accelerator: str, size: int, count: int) -> float:
    """Returns the GB a second that each rank moves in an all-reduce; 0 where its sum is wrong."""
    answers = mp.get_context("spawn").SimpleQueue()
    mp.spawn(reduce_in, (size, accelerator, free_port(), count, answers), nprocs=size)
    return 2 * (size - 1) / size * 4e-9 * count / answers.get()


def nccl(machine: Machine) -> Iterator[Finding]:
    """Gradients of all GPUs, summed."""
    size = torch.cuda.device_count()
    limit = LINKED if has_nvlink() else UNLINKED
    yield at_least(f"NCCL: all-reduce over {size} GPUs", all_reduce("gpu", size, 1 << 28), limit, "GB/s")


def gloo(machine: Machine) -> Iterator[Finding]:
    """What ranks tell each other on the host, and through which address."""
    address = "127.0.0.1"  # what gloo takes where the name has none
    with suppress(OSError):
        address = socket.gethostbyname(socket.gethostname())
    note = f"this host's name is {address}"
    if name := os.environ.get("GLOO_SOCKET_IFNAME"):
        note = f"GLOO_SOCKET_IFNAME={name}"
    elif address.startswith("127."):
        note += ", which other nodes do not reach: set GLOO_SOCKET_IFNAME for several"
    speed = all_reduce("cpu", 2, machine.size(1 << 26, 1 << 22))
    yield at_least("gloo: all-reduce over 2 ranks", speed, GLOO, "GB/s", note)


def disk(machine: Machine) -> Iterator[Finding]:
    """Writes a checkpoint where runs keep theirs."""
    weights = torch.ones(machine.size(1 << 30, 1 << 22))
    with empty_folder() as folder:
        start = time.perf_counter()
        DirectCheckpointIO().save_checkpoint({"weights": weights}, f"{folder}/trainer.ckpt")
        with open(f"{folder}/trainer.ckpt", "rb") as file:
            os.fsync(file.fileno())
        speed = 4 * len(weights) / (time.perf_counter() - start) / 1e9
    yield at_least("disk: checkpoints written", speed, machine.size(DISK, DISK / 100), "GB/s")
    free = shutil.disk_usage(FILES).free / 1e9
    yield at_least("disk: free", free, machine.size(ROOM, 1.0), "GB")


def hub(machine: Machine) -> Iterator[Finding]:
    """Whether models can be fetched, or were fetched before."""
    from huggingface_hub import constants, scan_cache_dir

    cache, reason = Path(constants.HF_HUB_CACHE), stay_offline_without_hub()
    kept = len(scan_cache_dir(cache).repos) if cache.is_dir() else 0
    note = f"{constants.ENDPOINT} {reason or 'answers'}; {kept} models and data sets in the cache (HF_HOME)"
    if machine.on_gpu:
        yield holds("models: hub or cache", reason is None or kept > 0, f"{note}; or model.path=FOLDER")
    else:  # where the models of runs are small
        yield measured("models: hub or cache", float(reason is None or kept > 0), "", note)


CHECKS = (*map(Check, (driver, host, gloo, disk, hub)), Check(links, gpus=2), Check(nccl, gpus=2))
