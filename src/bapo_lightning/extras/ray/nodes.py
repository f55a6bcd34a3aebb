"""Ranks of a run on the nodes of a Ray cluster: an actor on each node starts its ranks, each in a separate
process, and passes their output and exit codes to this process. Ray Train would run a rank in a thread, which
cannot handle signals, so that a run could not save itself when it is stopped.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from signal import SIGKILL, SIGTERM
from tempfile import TemporaryFile
from typing import Any

import ray
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy, PlacementGroupSchedulingStrategy

from bapo_lightning.extras.ray.joining import (
    HEAD_SECONDS,
    JOINED,
    check_cluster,
    has_gpus,
    join,
    leave,
    room,
    while_alive,
)
from bapo_lightning.extras.ray.versions import differences, versions
from bapo_lightning.system.errors import EngineError, RankError, last_line
from bapo_lightning.system.ranks.launch import LOOK_SECONDS, RankPlace, free_port, start, supervise

RESERVE_SECONDS = 60.0  # that nodes may need to become free
MOST_BYTES = 1 << 24  # of output that one look reads
THREADS = "OMP_NUM_THREADS"


@dataclass(frozen=True)
class Shape:
    """Resources that the ranks of a run use on a cluster."""

    num_nodes: int
    ranks_per_node: int
    cpus: int  # of each rank
    wants_gpus: bool  # one for each rank, if the cluster has any
    is_apart: bool  # on devices that nothing else on the cluster gets; False: on the fleet's
    fleet_cpus: float  # in addition to the ranks', if a cluster is started on this machine


class NodeRanks:
    """The ranks of one node, in an actor there."""

    def meet(self) -> tuple[dict[str, str], str, int]:
        """Versions of the node's packages, its address, and a port that is free there."""
        return versions(), ray.util.get_node_ip_address(), free_port()

    def start(
        self,
        places: Sequence[RankPlace],
        arguments: Sequence[str],
        folder: str,
        environment: Mapping[str, str],
    ) -> str | None:
        """Starts ranks in `folder`; returns why that is impossible."""
        if not Path(folder).is_dir():
            return f"it has no folder {folder}: ranks start where the command did, and share its run folder"
        os.environ.pop(THREADS, None)  # Ray's, of the actor
        os.environ.update(environment)
        self._files = stdout, stderr = TemporaryFile(), TemporaryFile()  # noqa: SIM115
        self._ranks = [
            start(place, arguments, cwd=folder, stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr)
            for place in places
        ]
        self._read = [0, 0]
        return None

    def look(self) -> tuple[list[int | None], list[bytes]]:
        """Exit codes of the ranks, None for those that run; new standard output and error."""
        codes = [rank.poll() for rank in self._ranks]  # first: output written before an end is then read
        written = []
        for number, file in enumerate(self._files):
            written.append(os.pread(file.fileno(), MOST_BYTES, self._read[number]))
            self._read[number] += len(written[-1])
        return codes, written

    def send_signal(self, local_rank: int, number: int) -> None:
        """Sends a signal to a rank, if it still runs."""
        self._ranks[local_rank].send_signal(number)


@dataclass(eq=False)
class Node:
    """The ranks of one node, as this process sees them."""

    actor: Any  # handle
    size: int  # number of ranks
    codes: list[int | None] = field(init=False)
    signals: list[tuple[int, int]] = field(default_factory=list, init=False)  # (local rank, number), to send
    _looked: float = field(default=0.0, init=False)
    _is_stopped: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        self.codes = [None] * self.size

    def look(self) -> None:
        """Sends signals, prints new output, and notices which ranks have ended: on a lost node, all."""
        if None not in self.codes or time.monotonic() < self._looked + LOOK_SECONDS / 2:
            return
        self._stop_without_cluster()
        signals, self.signals = self.signals, []
        try:
            for signal in signals:
                self.actor.send_signal.remote(*signal)
            codes, written = ray.get(self.actor.look.remote(), timeout=HEAD_SECONDS)
        except ray.exceptions.RayError:
            codes, written = [-SIGKILL if code is None else code for code in self.codes], []
        for stream, text in zip((sys.stdout, sys.stderr), written, strict=False):
            stream.write(text.decode(errors="replace"))
            stream.flush()
        self.codes, self._looked = codes, time.monotonic()

    def _stop_without_cluster(self) -> None:
        """Lets the ranks save themselves if the head node is gone: their own node ends a minute later."""
        if self._is_stopped:
            return
        try:
            check_cluster()
        except EngineError as error:
            say_once(f"error: {error}")
            self._is_stopped = True
            self.signals += [(rank, SIGTERM) for rank in range(self.size)]


@cache
def say_once(text: str) -> None:
    """Prints a message of several nodes once."""
    print(text, file=sys.stderr, flush=True)


@dataclass(eq=False)
class NodeRank:
    """One rank on a node, as `ranks.launch` sees it."""

    node: Node
    local_rank: int

    @property
    def returncode(self) -> int | None:
        """Exit code, None while it runs."""
        return self.node.codes[self.local_rank]

    def poll(self) -> int | None:
        """Looks, and returns the exit code."""
        self.node.look()
        return self.returncode

    def wait(self) -> int:
        """Waits for its end; returns the exit code."""
        while (code := self.poll()) is None:
            time.sleep(LOOK_SECONDS)
        return code

    def send_signal(self, sig: int) -> None:
        """Lets the next look send a signal: a handler that interrupts a look may call this."""
        self.node.signals.append((self.local_rank, sig))

    def kill(self) -> None:
        """Ends it with the next look."""
        self.send_signal(SIGKILL)


def launch(address: str | None, shape: Shape, arguments: Sequence[str]) -> int:
    """Trains on the nodes of a cluster (`address` as in `join`); returns the run's exit code. Raises
    EngineError without a cluster; RankError if there are too few nodes, or they differ from this machine.
    """
    rank_cpus = shape.ranks_per_node * shape.cpus * shape.is_apart
    joined = join(address, rank_cpus + shape.fleet_cpus, "ranks.address")
    with ExitStack() as stack:
        if joined:
            stack.callback(leave)
        per_node = {"CPU": float(shape.ranks_per_node * shape.cpus)}
        if shape.wants_gpus and has_gpus():
            per_node["GPU"] = float(shape.ranks_per_node)
        strategies = reserved(stack, shape, per_node) if shape.is_apart else unreserved(shape, per_node)
        claims = per_node if shape.is_apart else {}
        options = {"num_cpus": claims.get("CPU", 0), "num_gpus": claims.get("GPU", 0), "max_restarts": 0}
        actor = ray.remote(NodeRanks)
        actors = [actor.options(**options, scheduling_strategy=each).remote() for each in strategies]
        return supervise(started([Node(actor, shape.ranks_per_node) for actor in actors], arguments))


def reserved(stack: ExitStack, shape: Shape, per_node: Mapping[str, float]) -> list[Any]:
    """Scheduling strategies of nodes whose devices nothing else gets until `stack` is closed."""
    group = placement_group([dict(per_node)] * shape.num_nodes, strategy="STRICT_SPREAD")
    stack.callback(remove_placement_group, group)
    if not group.wait(RESERVE_SECONDS):
        raise too_few(shape, per_node)
    return [PlacementGroupSchedulingStrategy(group, number) for number in range(shape.num_nodes)]


def unreserved(shape: Shape, per_node: Mapping[str, float]) -> list[Any]:
    """Scheduling strategies of nodes whose devices the fleet gets as well, this machine's first."""
    fitting = [node for node, count in room(per_node["CPU"], per_node.get("GPU", 0.0)).items() if count]
    local_node = ray.get_runtime_context().get_node_id()
    if len(fitting) < shape.num_nodes:
        raise too_few(shape, per_node)
    chosen = sorted(fitting, key=lambda node: (node != local_node, node))[: shape.num_nodes]
    return [NodeAffinitySchedulingStrategy(node, soft=False) for node in chosen]


def too_few(shape: Shape, per_node: Mapping[str, float]) -> RankError:
    """Error that says what is missing and what to do."""
    needed = " and ".join(f"{count:g} {name}s" for name, count in per_node.items())
    nodes = f"{shape.num_nodes} node{'s' if shape.num_nodes > 1 else ''}"
    return RankError(
        f"the Ray cluster does not have {nodes} with {needed} free on each, for trainer.devices="
        f"{shape.ranks_per_node} and trainer.num_nodes={shape.num_nodes}; `ray status` lists what it has"
    )


def started(nodes: Sequence[Node], arguments: Sequence[str]) -> list[NodeRank]:
    """Starts all ranks. RankError: a node differs from this machine; EngineError: there is no cluster."""
    try:
        met = while_alive(lambda: ray.get([node.actor.meet.remote() for node in nodes]))
        here = versions()
        for reported, address, _ in met:
            if wrong := differences(here, reported):
                raise RankError(f"the node {address} of the Ray cluster has {wrong}")
        _, address, port = met[0]
        kept = {name: os.environ[name] for name in (THREADS, "PYTHONPATH") if name in os.environ}
        environment = {JOINED: ray.get_runtime_context().gcs_address, **kept}
        size, local = sum(node.size for node in nodes), nodes[0].size
        started = []
        for number, node in enumerate(nodes):
            ranks = [(local * number + rank, size, rank, local, number) for rank in range(local)]
            places = [RankPlace(*rank, address, port) for rank in ranks]
            started.append(node.actor.start.remote(places, list(arguments), os.getcwd(), environment))
        for (_, where, _), problem in zip(met, while_alive(lambda: ray.get(started)), strict=True):
            if problem:
                raise RankError(f"the node {where} of the Ray cluster cannot start ranks: {problem}")
    except ray.exceptions.RayError as error:
        raise RankError(f"ranks could not be started on the Ray cluster: {last_line(error)}") from error
    return [NodeRank(node, rank) for node in nodes for rank in range(node.size)]
