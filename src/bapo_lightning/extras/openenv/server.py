"""An OpenEnv server: a running one, by its URL, or one that the run starts, and restarts if it dies."""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from bapo_lightning.extras.openenv.session import WorldSession
from bapo_lightning.system.errors import EnvironmentFault
from bapo_lightning.system.orphans import BOUND
from bapo_lightning.system.peers import PeerFault
from bapo_lightning.system.ranks.launch import free_port
from bapo_lightning.system.supervised import Supervised, last_line, passed_on, signal_group
from bapo_lightning.system.values import Seconds, is_http_address

_PACKAGE = Path(__file__).resolve().parents[2]
_NAME = re.compile(r"\{(\w+)\}")
LOOK_SECONDS = 0.05  # between two requests to a server that is not ready or full
_END_SECONDS = 5.0


class WorldServer:
    """Opens sessions, from several threads at once.

    Args:
        url: http:// or https:// address of a server; null: the run starts one.
        command: that starts a server; {port} in it is the port that it must listen on, at 127.0.0.1,
            and {bapo_lightning} the folder of this package.
        values: texts for other names in braces in the command.
        folder: in which the command is run; null: the run's.
        variables: of the command, in addition to PATH, HOME, TMPDIR and the language.
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
        if problems := list(self.problems({"url": url, "command": command})):
            raise ValueError("; ".join(problems))
        self._url, self._command, self._folder = url, tuple(command), folder
        self._values, self._variables = dict(values or {}), dict(variables or {})
        self._seconds = seconds
        self._process: Supervised | None = None
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
            yield f"url={url} is not the address of a server; write http://HOST:PORT"
        elif command and not any("{port}" in part for part in command):
            yield f'command={list(command)} gets no port; write "{{port}}" where the command takes it'

    def open(self, seconds: float) -> WorldSession:
        """Opens a session whose answers come within so many seconds. Raises EnvironmentFault if no
        server answers within the seconds of the constructor, or its command has ended.
        """
        give_up = time.monotonic() + self._seconds
        while True:
            url = self._running()
            try:
                session = WorldSession(f"ws{url.removeprefix('http')}/ws", seconds)
                self._has_worked = True
                return session
            except PeerFault as error:
                if time.monotonic() > give_up:
                    raise EnvironmentFault(
                        f"no OpenEnv server takes a connection at {url} within {self._seconds:g} s ({error})"
                        f"{self._last_words()}"
                    ) from None
            time.sleep(LOOK_SECONDS)

    def close(self) -> None:
        """Ends the server that the run started. It can be used again."""
        with self._lock:
            process, self._process = self._process, None
            if process is not None:
                process.end()

    def _running(self) -> str:
        """URL of a server, started if it must be."""
        if self._url is not None:
            return self._url.rstrip("/")
        with self._lock:
            if self._process is None or self._owner != os.getpid():
                self._start()
            elif (code := self._process.process.poll()) is not None:
                if not self._has_worked:
                    raise EnvironmentFault(
                        f"the command of the OpenEnv server ended with code {code}{self._last_words()}"
                    )
                self._start()
            return f"http://127.0.0.1:{self._port}"

    def _start(self) -> None:
        if self._process is not None:
            self._process.end()
        self._owner, self._port, self._has_worked = os.getpid(), free_port(), False
        self._output = tempfile.TemporaryFile()  # noqa: SIM115
        known = {**self._values, "port": str(self._port), "bapo_lightning": str(_PACKAGE)}
        command = [_NAME.sub(lambda match: known.get(match[1], match[0]), part) for part in self._command]
        self._process = Supervised(
            [*BOUND, *command],
            {**passed_on("HOME"), **self._variables},
            seconds=_END_SECONDS,
            ask=signal_group,  # a shell would not pass the signal on
            cwd=self._folder,
            stdout=self._output,
            stderr=subprocess.STDOUT,
        )

    def _last_words(self) -> str:
        line = last_line(self._output) if self._output is not None else ""
        return f"; its last words: {line}" if line else ""
