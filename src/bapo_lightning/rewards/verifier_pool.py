"""A fixed number of killable worker processes that judge answers, each within its deadline.

Any thread may call `judge`; calls take turns. After a fork (a subprocess of the caller) the pool starts
workers of its own at its first use there. A worker that misses its deadline or dies is killed and replaced,
so that the pool keeps its size.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from pathlib import Path

import bapo_lightning
from bapo_lightning.errors import RewardError
from bapo_lightning.rewards.nursery import KILL, PID_BYTES, SPAWN
from bapo_lightning.types import ScoreStatus

_START_SECONDS = 300.0  # to import sympy and math-verify, on a machine that is busy with other things
_CLOSED = "the verifier was closed while it judged answers"
_SOURCE = Path(bapo_lightning.__file__).parents[1]


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a worker said, or why it could not; a reason goes with FAILED."""

    status: ScoreStatus
    reason: str = ""


@dataclass(eq=False, slots=True)
class _Worker:
    pid: int
    connection: Connection


@dataclass(slots=True)
class _Processes:
    """What must be ended: the nursery, and its workers with it."""

    nursery: subprocess.Popen[bytes]
    control: socket.socket
    workers: list[_Worker] = field(default_factory=list)
    owner: int = field(default_factory=os.getpid)

    def end(self) -> None:
        """End the nursery, which ends the workers. In a forked copy of the owner: only let go of the
        connections.
        """
        self.control.close()
        for worker in self.workers:
            worker.connection.close()
        if self.owner == os.getpid() and not self._ended_by_itself():
            self.nursery.kill()
            self.nursery.wait()

    def _ended_by_itself(self) -> bool:
        try:
            self.nursery.wait(timeout=10)
        except subprocess.TimeoutExpired:
            return False
        return True


class VerifierPool:
    """Judges pairs of gold answer and answer in `num_workers` processes, which are started at the first
    use.
    """

    def __init__(self, num_workers: int, timeout_seconds: float, memory_megabytes: int) -> None:
        self.num_workers, self.timeout_seconds, self.memory_megabytes = (
            num_workers,
            timeout_seconds,
            memory_megabytes,
        )
        self._processes: _Processes | None = None
        self._finalizer: weakref.finalize[..., VerifierPool] | None = None
        self._lock, self._lock_owner = threading.Lock(), os.getpid()

    def judge(self, pairs: Sequence[tuple[str, str]], timeout_seconds: float | None = None) -> list[Verdict]:
        """One verdict per pair of gold answer and answer, in order.

        Args:
            pairs: texts of bounded length.
            timeout_seconds: for one answer; None: the pool's.

        Raises:
            RewardError: no worker can be started, or the pool was closed meanwhile.
        """
        if not pairs:
            return []
        timeout_seconds = self.timeout_seconds if timeout_seconds is None else timeout_seconds
        if (
            self._lock_owner != os.getpid()
        ):  # forked: the lock may be held by a thread that does not exist here
            self._lock, self._lock_owner = threading.Lock(), os.getpid()
        with self._lock:
            processes = self._running()
            try:
                return self._judge(processes, pairs, timeout_seconds)
            except (OSError, ValueError):  # of a connection that `close` closed
                if self._processes is processes:
                    raise
                raise RewardError(_CLOSED) from None

    @property
    def worker_pids(self) -> list[int]:
        """Process ids of the workers; empty before the first use."""
        return [worker.pid for worker in self._processes.workers] if self._processes else []

    def close(self) -> None:
        """End all processes, also when another thread is waiting for verdicts. The pool can be used again."""
        self._processes = None
        if self._finalizer is not None:
            self._finalizer()

    def _judge(
        self, processes: _Processes, pairs: Sequence[tuple[str, str]], timeout_seconds: float
    ) -> list[Verdict]:
        verdicts: dict[int, Verdict] = {}
        waiting = deque(range(len(pairs)))
        busy: dict[Connection, tuple[int, _Worker, float]] = {}
        try:
            while waiting or busy:
                for worker in [w for w in processes.workers if w.connection not in busy][: len(waiting)]:
                    number = waiting.popleft()
                    worker = self._hand_over(processes, worker, [*pairs[number], timeout_seconds])
                    busy[worker.connection] = (number, worker, time.monotonic() + timeout_seconds)
                next_deadline = min(deadline for _, _, deadline in busy.values())
                ready = wait(list(busy), max(0.0, next_deadline - time.monotonic()))
                now = time.monotonic()
                for number, worker, deadline in list(busy.values()):
                    if worker.connection in ready:
                        del busy[worker.connection]
                        verdicts[number] = self._receive(processes, worker)
                    elif now >= deadline:
                        del busy[worker.connection]
                        verdicts[number] = Verdict(ScoreStatus.TIMEOUT)
                        self._replace(processes, worker)
        # interrupted: an answer that is still being judged must not be taken for that of the next call
        finally:
            for _, worker, _ in busy.values():
                self._replace(processes, worker)
        return [verdicts[number] for number in range(len(pairs))]

    def _hand_over(self, processes: _Processes, worker: _Worker, task: list[object]) -> _Worker:
        """Send the task to the worker, or to one in its place when it died while it was idle."""
        message = json.dumps(task).encode()
        try:
            worker.connection.send_bytes(message)
        except (BrokenPipeError, ConnectionResetError):
            worker = self._replace(processes, worker)
            worker.connection.send_bytes(message)
        return worker

    def _receive(self, processes: _Processes, worker: _Worker) -> Verdict:
        try:
            status, reason, is_last = json.loads(worker.connection.recv_bytes())
        except (EOFError, OSError):
            status, reason, is_last = ScoreStatus.FAILED, "the worker died", True
        if is_last:
            self._replace(processes, worker)
        return Verdict(ScoreStatus(status), reason)

    def _running(self) -> _Processes:
        """The processes, started where there are none, where they belong to the parent of this process, or
        where the nursery has died.
        """
        processes = self._processes
        if processes is not None and processes.owner == os.getpid() and processes.nursery.poll() is None:
            return processes
        if processes is not None:
            self.close()
        self._processes = processes = start_nursery(self.memory_megabytes)
        self._finalizer = weakref.finalize(self, processes.end)
        processes.workers = [_spawn(processes) for _ in range(self.num_workers)]
        return processes

    def _replace(self, processes: _Processes, worker: _Worker) -> _Worker:
        if self._processes is not processes:
            raise RewardError(_CLOSED)
        worker.connection.close()
        try:
            processes.control.sendall(KILL + worker.pid.to_bytes(PID_BYTES, "big"))
            fresh = _spawn(processes)
        except OSError:
            raise RewardError(
                "the process that starts verifier workers died; was it killed for memory?"
            ) from None
        processes.workers[processes.workers.index(worker)] = fresh
        return fresh


def start_nursery(memory_megabytes: int) -> _Processes:
    """Start the process that forks workers, and wait until it is warm. Raises RewardError when it cannot
    start.
    """
    ours, theirs = socket.socketpair()
    environment = {name: os.environ[name] for name in ("PATH", "LANG", "LC_ALL") if name in os.environ}
    # Verdicts must not depend on the order of sympy's sets; secrets stay out of the sandbox.
    environment |= {"PYTHONPATH": str(_SOURCE), "PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1"}
    command = [
        sys.executable,
        "-P",
        "-m",
        "bapo_lightning.rewards.nursery",
        str(theirs.fileno()),
        str(memory_megabytes),
    ]
    with theirs:
        nursery = subprocess.Popen(
            command,
            pass_fds=[theirs.fileno()],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,  # until it is ready
            start_new_session=True,  # Ctrl-C is for the parent to handle
        )
    ours.settimeout(_START_SECONDS)
    try:
        ready = ours.recv(1)
    except OSError:
        ready = b""
    if not ready:
        nursery.kill()
        _, errors = nursery.communicate()
        last_line = (errors.decode(errors="replace").strip().splitlines() or ["no message"])[-1]
        raise RewardError(
            f"the verifier could not start ({last_line}); try: {sys.executable} -c 'import math_verify'"
        )
    assert nursery.stderr is not None
    nursery.stderr.close()
    return _Processes(nursery, ours)


def _spawn(processes: _Processes) -> _Worker:
    ours, theirs = socket.socketpair()
    with theirs:
        socket.send_fds(processes.control, [SPAWN], [theirs.fileno()])
    pid = processes.control.recv(PID_BYTES, socket.MSG_WAITALL)
    if len(pid) < PID_BYTES:
        raise RewardError("no verifier worker could be started: the process that starts them died")
    return _Worker(int.from_bytes(pid, "big"), Connection(ours.detach()))
