"""This process among the ranks of a run."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeVar, cast

import torch
import torch.distributed as dist
from lightning.fabric.plugins.environments.cluster_environment import ClusterEnvironment
from lightning.fabric.plugins.environments.lightning import LightningEnvironment
from lightning.fabric.plugins.environments.slurm import SLURMEnvironment
from lightning.fabric.plugins.environments.torchelastic import TorchElasticEnvironment
from lightning.fabric.utilities.rank_zero import rank_zero_only

from bapo_lightning.system.errors import LaunchError
from bapo_lightning.system.ranks.channel import Channel, ControllerFailed, outcome_on
from bapo_lightning.system.ranks.launch import STARTED_BY_RUN, forget_left_over_ranks, place_of

T = TypeVar("T")


@dataclass(frozen=True)
class RankGroup:
    """All ranks. The trainer's thread uses the channel `control`, the generating thread `engines`."""

    rank: int = 0
    local_rank: int = 0
    size: int = 1
    environment: ClusterEnvironment | None = None  # Lightning's, for its Trainer; None: Lightning chooses
    control: Channel | None = None
    engines: Channel | None = None

    @property
    def is_controller(self) -> bool:
        """Whether this is rank 0."""
        return self.rank == 0

    def on_controller(self, work: Callable[[], T]) -> T:
        """Value of `work` on the controller, returned everywhere; every rank must call it. An error is raised
        on the controller; elsewhere ControllerFailed.
        """
        if self.control is None:
            return work()
        outcome = outcome_on(self.rank, work) if self.is_controller else None
        outcome = self.control.from_controller(outcome)
        if outcome.error is not None and not self.is_controller:
            raise ControllerFailed(str(outcome.error))
        return cast(T, outcome.result())

    def on_all_ranks(self, work: Callable[[], T]) -> T:
        """Does `work` on every rank and returns its value on this one. Every rank must call it. The first
        error of any rank is raised on the controller; elsewhere ControllerFailed.
        """
        if self.control is None:
            return work()
        outcome = outcome_on(self.rank, work)
        errors = [error for error in self.control.all(outcome.error) if error is not None]
        if errors:
            raise errors[0] if self.is_controller else ControllerFailed(str(errors[0]))
        return cast(T, outcome.value)

    def barrier(self) -> None:
        """Waits for all ranks, however long one of them takes."""
        if self.control is not None:
            self.control.all(None)

    def close(self) -> None:
        """Leaves the process group."""
        if dist.is_initialized():
            dist.destroy_process_group()


ALONE = RankGroup()


def uses_cuda(accelerator: str) -> bool:
    """Whether Lightning would use NVIDIA GPUs for `trainer.accelerator`."""
    return accelerator in ("auto", "gpu", "cuda") and torch.cuda.is_available()


def join(accelerator: str, devices: int, num_nodes: int, wait_minutes: float, needs_group: bool) -> RankGroup:
    """Meets the other ranks, before anything is built, so that there is one configuration: the controller's.
    `wait_minutes` limits a collective of training; `needs_group` makes a process group even for one rank, as
    sharding needs it. Raises LaunchError if another number of processes was started.
    """
    size = devices * num_nodes
    forget_left_over_ranks()
    rank, started = place_of()
    if started != size or rank >= size:
        raise LaunchError([
            f"the variables of this process say that it is rank {rank} of {started} (by torchrun, SLURM or "
            f"LOCAL_RANK), but trainer.devices={devices} x trainer.num_nodes={num_nodes} are {size} ranks, "
            f"0 to {size - 1}; start as many, write both keys as they were started, or unset RANK, "
            "LOCAL_RANK, WORLD_SIZE and SLURM_STEP_ID if nothing started any"
        ])  # fmt: skip
    environment = find_environment()
    # Loggers read it; Lightning set it from the variables when it was imported.
    rank_zero_only.rank = rank  # type: ignore[attr-defined]
    if size == 1 and not needs_group:
        return RankGroup(environment=environment)
    cuda = uses_cuda(accelerator)
    if cuda:
        torch.cuda.set_device(environment.local_rank())
    os.environ.update(MASTER_ADDR=environment.main_address, MASTER_PORT=str(environment.main_port))
    # Both backends: tensors on the host, such as the norms of weights that are kept there, use gloo.
    backend = "cpu:gloo,cuda:nccl" if cuda else "gloo"
    dist.init_process_group(backend, rank=rank, world_size=size, timeout=timedelta(minutes=wait_minutes))
    if size == 1:
        return RankGroup(environment=environment)
    control, engines = Channel(rank, size), Channel(rank, size)
    return RankGroup(rank, environment.local_rank(), size, environment, control, engines)


def find_environment() -> ClusterEnvironment:
    """Lightning's description of this process's launcher. Raises LaunchError for refused options of srun."""
    if STARTED_BY_RUN not in os.environ:
        if TorchElasticEnvironment.detect():
            return TorchElasticEnvironment()
        if "LOCAL_RANK" not in os.environ and place_of()[1] > 1:
            try:
                return SLURMEnvironment()
            except RuntimeError as error:
                raise LaunchError([str(error)]) from None
    return LightningEnvironment()


def gpu_of_rank(local_rank: int) -> str:
    """The GPU of this rank, in the form of CUDA_VISIBLE_DEVICES for a process that it starts."""
    listed = os.environ.get("CUDA_VISIBLE_DEVICES")
    return listed.split(",")[local_rank] if listed else str(local_rank)
