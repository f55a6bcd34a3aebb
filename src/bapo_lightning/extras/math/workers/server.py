"""A process that has sympy and math-verify loaded and warm, and judges answers in workers that it forks.

    trainer --requests--> server --one answer--> worker
            <--verdicts--        <--its verdict--

The server is a fresh interpreter rather than a fork of the trainer, which holds threads, CUDA, file locks and
secrets. `multiprocessing`'s own forkserver would pass on the trainer's environment, run the trainer's script
again in every worker, and fail in forked and in daemonic processes. The server has one thread, so that it can
fork a worker safely, within milliseconds. It ends when the trainer closes the pipe of requests or dies, and
its workers end with it, however it ends.

Messages are JSON. A request is `[[[gold, answer], ...], seconds per answer, seconds for all slow answers,
whether to refuse what is not evaluated]`. A reply is `[[[status, reason], ...], process ids of the workers]`;
the first reply holds no verdicts and says that the server is ready.
"""

from __future__ import annotations

import gc
import json
import multiprocessing
import os
import sys
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkProcess

from bapo_lightning.extras.math.workers.worker import serve, warm_up
from bapo_lightning.system.orphans import end_with_parent, starter
from bapo_lightning.types import ScoreStatus

# Forty times what algebra takes on an honest answer. Less would be lost time: the first formula of a new kind
# takes half a second to read, and a worker that is killed has learnt nothing.
FIRST_TRY_SECONDS = 1.0


class Tries:
    """The answers of one request, by index: which are judged next, for how long, and what came of them.

    Every answer first gets a short try, the shorter answers before the longer ones, so that quick answers
    seldom wait behind slow ones. Those that need longer follow, each with its whole deadline, as long as the
    budget of the request lasts.

    Args:
        lengths: of the answers.
        seconds: the deadline of one answer.
        budget_seconds: that all workers together may spend on tries that last longer than the first one may.
            What has not been decided when they have stays TIMEOUT.
    """

    def __init__(self, lengths: Sequence[int], seconds: float, budget_seconds: float) -> None:
        self.verdicts: list[tuple[str, str]] = [(ScoreStatus.TIMEOUT, "")] * len(lengths)
        self._seconds, self._first_seconds = seconds, min(seconds, FIRST_TRY_SECONDS)
        self._budget = budget_seconds
        self._first = deque(sorted(range(len(lengths)), key=lengths.__getitem__))
        self._second = deque[int]()

    def __bool__(self) -> bool:
        """Whether an answer waits for a worker and may have one."""
        return self._budget > 0 and bool(self._first or self._second)

    def take(self) -> tuple[int, float]:
        """Returns the next answer and the seconds that it has."""
        if self._first:
            return self._first.popleft(), self._first_seconds
        return self._second.popleft(), self._seconds

    def more_seconds(self, elapsed: float) -> float:
        """Returns how long a try may exceed its time: 0 if other answers wait for its worker."""
        if self._first or self._second:
            return 0.0
        return max(0.0, min(self._seconds, self._budget) - elapsed)

    def settle(self, index: int, verdict: tuple[str, str] | None, elapsed: float) -> None:
        """Records the end of a try: with a verdict, or at its deadline without one."""
        if verdict is not None:
            self.verdicts[index] = verdict
        elif elapsed < self._seconds:
            self._second.append(index)
        if elapsed >= self._first_seconds:
            self._budget -= elapsed


@dataclass(frozen=True, slots=True)
class _Worker:
    process: ForkProcess
    connection: Connection


@dataclass(slots=True)
class _Try:
    """An answer, by its index, that a worker judges since `begun` and until `deadline` at most."""

    index: int
    worker: _Worker
    begun: float
    deadline: float


class WorkerServer:
    """Keeps up to `num_workers` workers; replaces each that misses a deadline, dies or used much memory."""

    def __init__(
        self, requests: Connection, verdicts: Connection, num_workers: int, memory_megabytes: int
    ) -> None:
        self._requests, self._verdicts, self._memory_megabytes = requests, verdicts, memory_megabytes
        self._num_workers, self._workers = num_workers, list[_Worker]()

    def serve(self) -> None:
        """Answers requests until the trainer closes their pipe, also in the middle of one."""
        try:
            self._reply([])
            while True:
                self._reply(self._judge(*json.loads(self._requests.recv_bytes())))
        except (EOFError, BrokenPipeError):
            return  # daemonic workers end with this process

    def _reply(self, verdicts: Sequence[tuple[str, str]]) -> None:
        pids = [worker.process.pid for worker in self._workers]
        self._verdicts.send_bytes(json.dumps([verdicts, pids]).encode())

    def _judge(
        self, pairs: list[list[str]], seconds: float, batch_seconds: float, refuse_unevaluated: bool
    ) -> list[tuple[str, str]]:
        lengths = [len(answer) for _, answer in pairs]
        tries = Tries(lengths, seconds, batch_seconds * self._num_workers)
        idle, busy = list(self._workers), dict[Connection, _Try]()
        while tries or busy:
            while tries and (idle or len(self._workers) < self._num_workers):
                index, allowed = tries.take()
                worker = idle.pop() if idle else self._added()
                worker = self._hand_over(worker, [*pairs[index], refuse_unevaluated, seconds])
                start = time.monotonic()
                busy[worker.connection] = _Try(index, worker, start, start + allowed)
            next_deadline = min(running.deadline for running in busy.values())
            ready = wait([self._requests, *busy], max(0.0, next_deadline - time.monotonic()))
            if self._requests in ready:
                raise EOFError("the trainer does not wait for these verdicts any more")
            now = time.monotonic()
            for connection, running in list(busy.items()):
                verdict, is_last = None, True
                if connection in ready:
                    verdict, is_last = _received(connection)
                elif now < running.deadline:
                    continue
                elif more := tries.more_seconds(now - running.begun):
                    running.deadline = now + more
                    continue
                tries.settle(running.index, verdict, now - running.begun)
                del busy[connection]
                idle.append(self._replaced(running.worker) if is_last else running.worker)
        return tries.verdicts

    def _hand_over(self, worker: _Worker, task: list[object]) -> _Worker:
        message = json.dumps(task).encode()
        try:
            worker.connection.send_bytes(message)
        except (BrokenPipeError, ConnectionResetError):
            worker = self._replaced(worker)
            worker.connection.send_bytes(message)
        return worker

    def _added(self) -> _Worker:
        self._workers.append(self._started())
        return self._workers[-1]

    def _replaced(self, worker: _Worker) -> _Worker:
        worker.process.kill()
        worker.process.join()
        worker.connection.close()
        fresh = self._workers[self._workers.index(worker)] = self._started()
        return fresh

    def _started(self) -> _Worker:
        ours, theirs = multiprocessing.Pipe()
        inherited = [self._requests, self._verdicts, ours, *(worker.connection for worker in self._workers)]
        process = ForkProcess(
            target=_live, args=(theirs, inherited, self._memory_megabytes, os.getpid()), daemon=True
        )
        process.start()
        theirs.close()
        return _Worker(process, ours)


def _live(connection: Connection, inherited: list[Connection], memory_megabytes: int, server: int) -> None:
    """The life of a worker, which holds no pipe of the server or of another worker."""
    for other in inherited:
        other.close()
    end_with_parent(server)
    serve(connection, memory_megabytes)


def _received(connection: Connection) -> tuple[tuple[str, str], bool]:
    try:
        status, reason, is_last = json.loads(connection.recv_bytes())
    except (EOFError, OSError):
        return (ScoreStatus.FAILED, "the worker died"), True
    return (status, reason), is_last


def main(requests: int, verdicts: int, num_workers: int, memory_megabytes: int) -> None:
    """Serves the trainer over two pipes, given as file descriptors."""
    end_with_parent(starter())
    warm_up()
    gc.collect()
    gc.freeze()  # a collection in a worker would write to, and so copy, every page of the shared modules
    # From here on, messages are warnings about text that a policy wrote.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())
    WorkerServer(Connection(requests), Connection(verdicts), num_workers, memory_megabytes).serve()


if __name__ == "__main__":
    main(*(int(argument) for argument in sys.argv[1:]))
