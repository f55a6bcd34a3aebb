"""Starts the ranks of a run on this machine, passes signals on to them, and ends all if one is lost. Needs
no torch.

Each rank is a process with its own session, so that a Ctrl-C reaches only this process. A `RankLauncher`
does the same elsewhere; torchrun and SLURM do it themselves.
"""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, MutableMapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from bapo_lightning.system.orphans import started_by_this
from bapo_lightning.system.stopping import heard, stop

STARTED_BY_RUN = "BAPO_RANKS"  # variable in the ranks that a run started itself, set to their number
LOOK_SECONDS = 0.1
END_SECONDS = 20  # for the remaining ranks to end on their own after one is lost
FIRST_PORT = 20_000  # above the ports of well-known services and of workers of clusters
PORTS_TRIED = 100
SERVED_ELSEWHERE = 49_152  # first port that systems other than Linux give to programs that request any
PORT_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")


def starts_ranks(devices: Any, nodes: Any, environment: Mapping[str, str] = os.environ) -> bool:
    """Whether this process has to start the ranks, because it is not itself one of several."""
    if not isinstance(devices, int) or devices < 2 or nodes != 1:
        return False
    return not {"LOCAL_RANK", "TORCHELASTIC_RUN_ID", STARTED_BY_RUN} & set(environment) and (
        place_of(environment)[1] == 1
    )


def place_of(environment: Mapping[str, str] = os.environ) -> tuple[int, int]:
    """Rank of this process and number of ranks, as its launcher says; (0, 1) for a single process,
    whatever rank an earlier job left in its variables, and for a batch script or a shell of SLURM, which have
    tasks but no step. The only place that decides it.
    """
    rank, size = 0, 1
    if {"LOCAL_RANK", "TORCHELASTIC_RUN_ID", STARTED_BY_RUN} & set(environment):
        rank, size = _number(environment, 0, "RANK", "LOCAL_RANK"), _number(environment, 1, "WORLD_SIZE")
    elif not environment.keys().isdisjoint({"SLURM_STEP_ID", "SLURM_STEPID"}):  # only srun sets these
        size = _number(environment, 1, "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS")
        rank = _number(environment, 0, "SLURM_PROCID")
    return (rank, size) if size > 1 else (0, 1)


def forget_left_over_ranks(environment: MutableMapping[str, str] = os.environ) -> None:
    """Removes the variables by which libraries would take a single process for a rank other than 0."""
    if place_of(environment)[1] == 1 and not {"TORCHELASTIC_RUN_ID", STARTED_BY_RUN} & set(environment):
        for name in ("RANK", "LOCAL_RANK", "SLURM_PROCID", "SLURM_NTASKS", "JSM_NAMESPACE_RANK"):
            environment.pop(name, None)


def _number(environment: Mapping[str, str], default: int, *names: str) -> int:
    numbers = (environment[name] for name in names if environment.get(name, "").isdecimal())
    return int(next(numbers, default))


def has_launcher(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether a launcher started this process as a rank. SLURM ends the tasks of a step itself."""
    return "LOCAL_RANK" in environment


def leads(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether this process is rank 0; can be called before the ranks have met."""
    return place_of(environment)[0] == 0


def launch(num_ranks: int, arguments: Sequence[str]) -> int:
    """Trains in `num_ranks` processes with these command line arguments; returns the exit code of the run."""
    port = free_port()
    places = [RankPlace(rank, num_ranks, rank, num_ranks, 0, "127.0.0.1", port) for rank in range(num_ranks)]
    return supervise([start(place, arguments) for place in places])


class Rank(Protocol):
    """The process of a rank, with the methods of `subprocess.Popen`; it may be on another machine."""

    @property
    def returncode(self) -> Any:
        """The exit code that the last poll found, None while it runs."""

    def poll(self) -> int | None:
        """The exit code, None while it runs."""

    def wait(self) -> int:
        """Waits for its end; returns the exit code."""

    def send_signal(self, sig: int) -> None:
        """Sends a signal, if it still runs."""

    def kill(self) -> None:
        """Ends it at once."""


def supervise(ranks: Sequence[Rank]) -> int:
    """Waits for all ranks, which get every signal that this process gets; returns the run's exit code: for a
    stopped run the signal's code, however each rank ended.
    """

    def pass_on(number: signal.Signals) -> None:
        for rank in ranks:
            rank.send_signal(number)

    with heard(pass_on):
        try:
            code = watch(ranks)
        finally:
            for rank in ranks:
                if rank.poll() is None:
                    rank.kill()
                rank.wait()
    return stop.code_after(code)


@dataclass(frozen=True)
class RankPlace:
    """One rank among all, and how it meets the others."""

    rank: int
    size: int  # number of ranks
    local_rank: int  # on its node
    local_size: int
    node_rank: int
    address: str  # of rank 0
    port: int  # free there

    @property
    def variables(self) -> dict[str, str]:
        """Environment of its process, as torchrun would set it."""
        numbers = {
            "RANK": self.rank,
            "LOCAL_RANK": self.local_rank,
            "WORLD_SIZE": self.size,
            "LOCAL_WORLD_SIZE": self.local_size,
            "NODE_RANK": self.node_rank,
            "MASTER_ADDR": self.address,
            "MASTER_PORT": self.port,
            STARTED_BY_RUN: self.size,
        }
        return {name: str(value) for name, value in numbers.items()}


def start(place: RankPlace, arguments: Sequence[str], **options: Any) -> subprocess.Popen[bytes]:
    """Starts one rank. `options` are arguments of `subprocess.Popen`."""
    command = [sys.executable, "-m", "bapo_lightning.cli.train", *arguments]
    variables = {**os.environ, **threads(place.local_size), **started_by_this(), **place.variables}
    return subprocess.Popen(command, env=variables, start_new_session=True, **options)


def threads(num_ranks: int) -> dict[str, str]:
    """Variables that divide the cores among the ranks; torch would use all of them in each rank."""
    if "OMP_NUM_THREADS" in os.environ:
        return {}
    return {"OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 1) // num_ranks))}


def watch(ranks: Sequence[Rank]) -> int:
    """Waits until all ranks have ended, and reports lost ones; returns the exit code of the run."""
    deadline: float | None = None
    while None in (codes := [rank.poll() for rank in ranks]):
        if deadline is None and any(codes):
            report_lost(codes)
            deadline = time.monotonic() + END_SECONDS
        if deadline is not None and time.monotonic() > deadline:
            for rank in ranks:
                rank.kill()
        time.sleep(LOOK_SECONDS)
    if deadline is None:
        report_lost(codes)
    return exit_code([rank.returncode for rank in ranks])


def report_lost(codes: Sequence[int | None]) -> None:
    """Prints one line about ranks that a signal ended and that could not report it themselves."""
    lost = [(rank, -code) for rank, code in enumerate(codes) if code is not None and code < 0]
    if lost and stop.received is None:
        who = ", ".join(f"rank {rank} was ended by {signal.Signals(number).name}" for rank, number in lost)
        print(
            f"error: {who}; the other ranks end as well. The run continues from its last checkpoint with "
            "resume=auto",
            file=sys.stderr,
        )


def exit_code(codes: Sequence[int]) -> int:
    """Exit code of the lowest rank that failed; 128 + the signal for a rank that was ended by one."""
    failed = next((code for code in codes if code), 0)
    return failed if failed >= 0 else 128 - failed


def free_port() -> int:
    """A port that is unused, and that the system does not give to programs that request any port."""
    try:
        first_served = int(PORT_RANGE.read_text().split()[0])
    except OSError:  # not Linux
        first_served = SERVED_ELSEWHERE
    ports = range(FIRST_PORT, max(first_served, FIRST_PORT))
    for port in random.SystemRandom().sample(ports, min(PORTS_TRIED, len(ports))):
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("", port))
            return port
    with socket.socket() as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])
