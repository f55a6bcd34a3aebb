"""An OpenEnv server: somebody else's, by its URL, or one that the run starts and starts again if it dies."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from bapo_lightning.environments.openenv.session import Session, SessionLost
from bapo_lightning.errors import EnvironmentFault
from bapo_lightning.orphans import kill, popen_to_end_with, started_by_this
from bapo_lightning.ranks.launch import free_port
from bapo_lightning.values import Seconds, is_http_address

_PACKAGE = Path(__file__).resolve().parents[2]
_NAME = re.compile(r"\{(\w+)\}")
_LAUNCH = "bapo_lightning.environments.openenv.launch"
_PASSED_ON = ("PATH", "HOME", "TMPDIR", "LANG", "LC_ALL")  # variables: none that could hold a secret
_LOOK_SECONDS = 0.1
_END_SECONDS = 5.0


class Server:
    """Opens sessions, from several threads at once.

    Args:
        url: http:// or https:// address of a server; null: the run starts one.
        command: that starts a server; {port} in it is the port that it must listen on, at 127.0.0.1,
            and {bapo_lightning} the folder of this package.
        values: texts for other names in braces in the command.
        folder: in which the command is run; null: that of the run.
        variables: of the command, beside PATH, HOME, TMPDIR and the language.
        seconds: until a server must take a connection, also one that has died.

    Raises:
        ValueError: there is neither a URL nor a command, or both.
    """

    def __init__(
        self,
        url: str | None = None,
        command: Sequence[str] = (),
        values: Mapping[str, str] | None = None,
        folder: str | None = None,
        variables: Mapping[str, str] | None = None,
        seconds: Seconds = 60.0,
    ) -> None:
        if found := list(self.problems({"url": url, "command": command})):
            raise ValueError("; ".join(found))
        self._url, self._command, self._folder = url, tuple(command), folder
        self._values, self._variables = dict(values or {}), dict(variables or {})
        self._seconds = seconds
        self._process: subprocess.Popen[bytes] | None = None
        self._finalizer: weakref.finalize[..., Server] | None = None
        self._output: IO[bytes] | None = None
        self._owner = os.getpid()
        self._lock = threading.Lock()

    @staticmethod
    def problems(options: Mapping[str, Any]) -> Iterator[str]:
        """Yields what is wrong with the options of the constructor."""
        url, command = options["url"], options["command"]
        if bool(url) == bool(command):
            yield (
                f"url={url} with command={list(command or ())}: write one of them, such as "
                'url=http://host:8000, or command=[python,-m,my_world,--port,"{port}"]'
            )
        elif url and not is_http_address(url):
            yield f"url={url} is no address of a server; write http://HOST:PORT"
        elif command and not any("{port}" in part for part in command):
            yield f'command={list(command)} gets no port; write "{{port}}" where the command takes it'

    def open(self, seconds: float) -> Session:
        """Opens a session whose answers come within so many seconds. Raises EnvironmentFault: there is no
        server within the seconds of the constructor, or its command has ended.
        """
        give_up = time.monotonic() + self._seconds
        while True:
            url = self._running()
            try:
                session = Session(f"ws{url.removeprefix('http')}/ws", seconds)
                self._has_worked = True
                return session
            except SessionLost as error:
                if time.monotonic() > give_up:
                    raise EnvironmentFault(
                        f"no OpenEnv server takes a connection at {url} within {self._seconds:g} s ({error})"
                        f"{self._last_words()}"
                    ) from None
            time.sleep(_LOOK_SECONDS)

    def close(self) -> None:
        """Ends the server that the run started. It can be used again."""
        with self._lock:
            if self._finalizer is not None:
                self._finalizer()
            self._process = self._finalizer = None

    def _running(self) -> str:
        """URL of a server, started if it must be."""
        if self._url is not None:
            return self._url.rstrip("/")
        with self._lock:
            if self._process is None or self._owner != os.getpid():
                self._start()
            elif (code := self._process.poll()) is not None:
                if not self._has_worked:
                    raise EnvironmentFault(
                        f"the command of the OpenEnv server ended with code {code}{self._last_words()}"
                    )
                self._start()
            return f"http://127.0.0.1:{self._port}"

    def _start(self) -> None:
        if self._finalizer is not None:
            self._finalizer()
        self._owner, self._port, self._has_worked = os.getpid(), free_port(), False
        self._output = tempfile.TemporaryFile()  # noqa: SIM115
        known = {**self._values, "port": str(self._port), "bapo_lightning": str(_PACKAGE)}
        command = [_NAME.sub(lambda match: known.get(match[1], match[0]), part) for part in self._command]
        self._process = popen_to_end_with(
            [sys.executable, "-m", _LAUNCH, *command],
            cwd=self._folder,
            env={
                **{name: os.environ[name] for name in _PASSED_ON if name in os.environ},
                **self._variables,
                **started_by_this(),
            },
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C is for the trainer to handle
        )
        self._finalizer = weakref.finalize(self, _end, self._process, os.getpid())

    def _last_words(self) -> str:
        if self._output is None:
            return ""
        self._output.seek(max(0, self._output.seek(0, os.SEEK_END) - 2000))
        lines = self._output.read().decode(errors="replace").strip().splitlines()
        return f"; its last words: {lines[-1]}" if lines else ""


def _end(process: subprocess.Popen[bytes], owner: int) -> None:
    """Ends a server and all that it started; a forked copy leaves them alone."""
    if owner != os.getpid():
        return
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
    with suppress(subprocess.TimeoutExpired):
        process.wait(_END_SECONDS)
    kill(process, owner)
