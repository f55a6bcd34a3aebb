"""Starts the ranks of a run on this machine, passes signals on to them, and ends all when one is lost. Needs
no torch.

Each rank is a process and a session of its own, so that a Ctrl-C reaches this process alone. A `RankLauncher`
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
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Protocol

from bapo_lightning.orphans import started_by_this

STARTED_BY_RUN = "BAPO_RANKS"  # variable set in the ranks that a run started itself, to their number
LOOK_SECONDS = 0.1
END_SECONDS = 20  # for the remaining ranks to end by themselves after one is lost
FIRST_PORT = 20_000  # above those of well-known services and of the the workers of clusters
PORTS_TRIED = 100
SERVED_ELSEWHERE = 49_152  # first port that systems other than Linux serve to programs that ask for any
PORT_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)  # end a run after the current update


def starts_ranks(devices: Any, nodes: Any, environment: Mapping[str, str] = os.environ) -> bool:
    """Whether this process has to start the ranks, because it is not one of several itself."""
    if not isinstance(devices, int) or devices < 2 or nodes != 1:
        return False
    started = {"LOCAL_RANK", "TORCHELASTIC_RUN_ID", STARTED_BY_RUN} & set(environment)
    by_slurm = "SLURM_PROCID" in environment and int(environment.get("SLURM_NTASKS", 1)) > 1
    return not started and not by_slurm


def has_launcher(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether the parent of this process started it as a rank: this file's launcher, torchrun or Lightning's
    own. SLURM ends the tasks of a step itself.
    """
    return "LOCAL_RANK" in environment


def leads(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether this process is rank 0; can be asked before the ranks have met."""
    return environment.get("RANK", environment.get("SLURM_PROCID", "0")) == "0"


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
    """Waits for all ranks, which get every signal that this process gets; returns the run's exit code."""

    def pass_on(number: int, frame: FrameType | None) -> None:
        for rank in ranks:
            rank.send_signal(number)

    previous = {number: signal.signal(number, pass_on) for number in STOPPING}
    try:
        return watch(ranks)
    finally:
        for rank in ranks:
            if rank.poll() is None:
                rank.kill()
            rank.wait()
        for number, handler in previous.items():
            signal.signal(number, handler)


@dataclass(frozen=True)
class RankPlace:
    """One rank among all, and how it meets the others."""

    rank: int
    size: int  # number of ranks
    local_rank: int  # of its node
    local_size: int
    node_rank: int
    address: str  # of rank 0
    port: int  # free there

    @property
    def variables(self) -> dict[str, str]:
        """Environment of its process, as torchrun would have it."""
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
    """Starts one rank. `options` are those of `subprocess.Popen`."""
    command = [sys.executable, "-m", "bapo_lightning.cli.train", *arguments]
    variables = {**os.environ, **threads(place.local_size), **started_by_this(), **place.variables}
    return subprocess.Popen(command, env=variables, start_new_session=True, **options)


def threads(num_ranks: int) -> dict[str, str]:
    """Variables that share the cores out; torch would take all of them in each rank."""
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
    """Prints one line about the ranks that a signal ended, which could not say anything themselves."""
    lost = [(rank, -code) for rank, code in enumerate(codes) if code is not None and code < 0]
    if lost:
        who = ", ".join(f"rank {rank} was ended by {signal.Signals(number).name}" for rank, number in lost)
        print(
            f"error: {who}; the other ranks end as well. The run goes on from its last checkpoint with "
            "resume=auto",
            file=sys.stderr,
        )


def exit_code(codes: Sequence[int]) -> int:
    """Exit code of the lowest rank that failed; 128 + the signal for a rank that was ended by one."""
    failed = next((code for code in codes if code), 0)
    return failed if failed >= 0 else 128 - failed


def free_port() -> int:
    """A port that nothing uses, and nothing gets that asks the system for any port."""
    ports = range(FIRST_PORT, _first_served_port())
    for port in random.SystemRandom().sample(ports, min(PORTS_TRIED, len(ports))):
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("", port))
            return port
    with socket.socket() as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])


def _first_served_port() -> int:
    try:
        first = int(PORT_RANGE.read_text().split()[0])
    except OSError:  # not Linux
        first = SERVED_ELSEWHERE
    return max(first, FIRST_PORT)
