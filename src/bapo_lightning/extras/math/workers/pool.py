"""A pool of processes that judge answers, each within its deadline and all slow ones within a common budget.

Any thread may call `judge`; calls take turns. A forked copy of this process starts its own workers at its
first use of the pool.
"""

from __future__ import annotations

import json
import math
import os
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from bapo_lightning.system.errors import RewardError
from bapo_lightning.system.phases import phase
from bapo_lightning.system.supervised import CleanProcess
from bapo_lightning.types import ScoreStatus

_SERVER = "bapo_lightning.extras.math.workers.server"


@dataclass(frozen=True, slots=True)
class Verdict:
    """A worker's verdict on one answer; a reason goes with FAILED."""

    status: ScoreStatus
    reason: str = ""


class VerifierPool:
    """Judges pairs of gold answer and answer in `num_workers` processes, started at the first use."""

    def __init__(
        self,
        num_workers: int,
        timeout_seconds: float,
        memory_megabytes: int,
        batch_seconds: float = math.inf,
        refuse_unevaluated: bool = True,
    ) -> None:
        self.num_workers, self.memory_megabytes = num_workers, memory_megabytes
        self.timeout_seconds, self.batch_seconds = timeout_seconds, batch_seconds
        self.refuse_unevaluated = refuse_unevaluated
        self.worker_pids: list[int] = []  # empty before the first use
        self._server: CleanProcess | None = None
        self._lock, self._owner = threading.Lock(), os.getpid()

    def judge(self, pairs: Sequence[tuple[str, str]], timeout_seconds: float | None = None) -> list[Verdict]:
        """Returns one verdict per pair of gold answer and answer, in order.

        `timeout_seconds` for one answer replaces the pool's; such a call has no budget. Raises RewardError if
        no worker can be started, the server died, or the pool was closed meanwhile.
        """
        if not pairs:
            return []
        if self._owner != os.getpid():  # forked: the lock may be held by a thread that does not exist here
            self._lock, self._owner = threading.Lock(), os.getpid()
            self.close()
        limits = self.timeout_seconds, self.batch_seconds
        if timeout_seconds is not None:
            limits = timeout_seconds, math.inf
        request = json.dumps([pairs, *limits, self.refuse_unevaluated]).encode()
        with self._lock:
            server = self._running()
            try:
                server.requests.send_bytes(request)
                verdicts, self.worker_pids = json.loads(server.replies.recv_bytes())
            except BaseException as error:
                was_closed = self._server is not server
                self.close()  # verdicts that still come must not be taken for the next call's
                if not isinstance(error, EOFError | OSError):
                    raise
                problem = "was closed" if was_closed else "died (was it killed for memory?)"
                raise RewardError(f"the verifier {problem} while it judged answers") from None
        return [Verdict(ScoreStatus(status), reason) for status, reason in verdicts]

    def close(self) -> None:
        """Ends all processes, even while another thread waits for verdicts. The pool can be used again."""
        server, self._server, self.worker_pids = self._server, None, []
        if server is not None:
            server.end()

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy in another process has its own workers."""
        options = self.num_workers, self.timeout_seconds, self.memory_megabytes
        return VerifierPool, (*options, self.batch_seconds, self.refuse_unevaluated)

    def _running(self) -> CleanProcess:
        if self._server is None or self._server.process.poll() is not None:
            self.close()
            self._server, self.worker_pids = _start(self.num_workers, self.memory_megabytes)
        return self._server


@phase("starting the verifier")
def _start(num_workers: int, memory_megabytes: int) -> tuple[CleanProcess, list[int]]:
    """Starts a server; returns it with its workers' process ids. Raises RewardError when it cannot start."""
    variables = {"PYTHONHASHSEED": "0"}  # verdicts must not depend on the order of sympy's sets
    folders = [folder for folder in os.environ.get("PYTHONPATH", "").split(os.pathsep) if folder]
    options = str(num_workers), str(memory_megabytes)
    server = CleanProcess(_SERVER, *options, variables=variables, folders=folders)
    try:
        _, pids = json.loads(server.first_reply())
    except ChildProcessError as error:
        raise RewardError(
            f"the verifier could not start ({error}); try: {sys.executable} -c 'import math_verify'"
        ) from None
    return server, pids
