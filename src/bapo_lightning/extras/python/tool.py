"""The Python interpreter as a tool."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from queue import LifoQueue
from typing import Any, Literal

from bapo_lightning.environments.tools import ToolResult
from bapo_lightning.extras.python.kernel import missing_walls
from bapo_lightning.extras.python.program import CallLimits
from bapo_lightning.system.errors import ConfigError, EnvironmentFault
from bapo_lightning.system.phases import phase
from bapo_lightning.system.supervised import CleanProcess
from bapo_lightning.system.values import Megabytes, Seconds, Size, Workers

_HOST = "bapo_lightning.extras.python.host"
_GRACE_SECONDS = 10.0  # that a host may take to clean up after a program
_SILENCE = "(no output)"


class Python:
    """Tool that runs each program in a separate process, of which only the output survives the call.

    Any thread may call it. Hosts start when they are first needed, and end with the trainer, however it ends.

    Args:
        workers: number of programs that run at the same time; further calls wait.
        seconds: wall-clock time of one program.
        memory_megabytes: memory that a program may use.
        file_megabytes: size of a file, and of all files together, in the program's scratch folder.
        output_bytes: number kept of a program's output, half of them from the end.
        show_last_value: show the value of the last expression of a program that printed nothing.
        modules: loaded before the first call, so that programs import them in no time.
        walls: what confines a program: "kernel" needs Landlock and seccomp; "none" prevents nothing that
            this user can do.

    Raises:
        ConfigError: this machine's kernel has no walls.
    """

    is_pure = False

    def __init__(
        self,
        workers: Workers = 2,
        seconds: Seconds = 5.0,
        memory_megabytes: Megabytes = 512,
        file_megabytes: Megabytes = 16,
        output_bytes: Size = 4000,
        show_last_value: bool = True,
        modules: Sequence[str] = (),
        walls: Literal["kernel", "none"] = "kernel",
    ) -> None:
        if problems := list(self.machine_problems({"walls": walls})):
            raise ConfigError(problems)
        self._limits = CallLimits(
            seconds, memory_megabytes, file_megabytes, output_bytes, show_last_value, walls
        )
        self._workers, self._modules = workers, tuple(modules)
        self._make_hosts()

    @staticmethod
    def machine_problems(options: Mapping[str, Any], run: object = None) -> Iterator[str]:
        """Yields that this machine's kernel has no walls, unless the options do without."""
        if options["walls"] == "kernel" and (missing := missing_walls()):
            yield (
                f"walls=kernel needs {', '.join(missing)}, which this machine does not have; with walls=none "
                "there are none, and a program of the policy can do anything this user can, to files, "
                "processes and network"
            )

    def __call__(self, argument: str) -> ToolResult:
        """Returns the printed text, or the end of a traceback. Raises EnvironmentFault without a host."""
        if self._owner != os.getpid():  # forked: hosts and locks belong to threads that do not exist here
            self.close()
            self._make_hosts()
        host = self._idle.get()
        try:
            return host.run(argument)
        finally:
            self._idle.put(host)

    def close(self) -> None:
        """Ends all processes, even while programs run. The tool can be used again."""
        for host in self._hosts:
            host.close()

    def _make_hosts(self) -> None:
        self._owner = os.getpid()
        self._hosts = [_Host(self._limits, self._modules) for _ in range(self._workers)]
        self._idle: LifoQueue[_Host] = LifoQueue()
        for host in self._hosts:
            self._idle.put(host)


class _Host:
    def __init__(self, limits: CallLimits, modules: tuple[str, ...]) -> None:
        self._limits, self._modules = limits, modules
        self._process: CleanProcess | None = None
        self._lock = threading.Lock()  # of a start against a close

    def run(self, code: str) -> ToolResult:
        process = self._running()
        try:
            process.requests.send_bytes(json.dumps(code).encode())
            if not process.replies.poll(self._limits.seconds + _GRACE_SECONDS):
                process.process.kill()
            text, failed = json.loads(process.replies.recv_bytes())
        except BaseException as error:
            was_closed = self._process is not process
            self.close()  # a late result must not be taken for the next program's
            if not isinstance(error, EOFError | OSError):
                raise
            if was_closed:
                raise EnvironmentFault("the Python interpreter was closed while a program ran") from None
            return ToolResult("Error: the program was ended (it may have used too much memory).", failed=True)
        return ToolResult(text or _SILENCE, failed)

    def close(self) -> None:
        with self._lock:
            process, self._process = self._process, None
            if process is not None:
                process.end()

    def _running(self) -> CleanProcess:
        with self._lock:
            if self._process is None or self._process.process.poll() is not None:
                self._process = _start(self._limits, self._modules)
            return self._process


@phase("starting a Python interpreter")
def _start(limits: CallLimits, modules: tuple[str, ...]) -> CleanProcess:
    # A fixed order of sets, and one thread, so that a program does the same in every call.
    variables = {"PYTHONHASHSEED": "0", "OPENBLAS_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    options = json.dumps(asdict(limits)), json.dumps(modules)
    process = CleanProcess(_HOST, *options, variables=variables)
    try:
        problem, failed = json.loads(process.first_reply())
    except ChildProcessError as error:
        problem, failed = str(error), True
    if failed:
        process.end()
        raise EnvironmentFault(f"the Python interpreter could not start ({problem})")
    return process
