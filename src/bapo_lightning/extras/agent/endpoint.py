"""The endpoint that programs call, on the loopback interface, and the start of programs that know it."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import secrets
import shutil
import socket
import threading
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, Literal

from aiohttp import web

from bapo_lightning.extras.agent.program import Limits, Program, ProgramLost
from bapo_lightning.extras.agent.requests import Asked, RequestRefused, chunks, completion, read
from bapo_lightning.extras.agent.responses import event_lines, events, read_responses, response
from bapo_lightning.system.errors import EnvironmentFault
from bapo_lightning.system.peers.loop import run
from bapo_lightning.types import Problem

_Send = Callable[[web.Request, Asked, Sequence[str]], Awaitable[web.StreamResponse]]
_ENDED = RequestRefused("the conversation has ended", 410)


class Endpoint:
    """Starts programs, each with a key of its own, and passes their requests on; from several threads.

    Args:
        command: of a program; {task} in it is the problem's text.
        folder: in which the command is run; null: the run's.
        variables: of the command, in addition to PATH, HOME, TMPDIR, the language and those of the endpoint.
        settings: what a request's own sampling settings are: "ignore", or "refuse" the request.
        limits: of each program.
    """

    def __init__(
        self,
        command: Sequence[str],
        folder: str | None = None,
        variables: Mapping[str, str] | None = None,
        settings: Literal["ignore", "refuse"] = "ignore",
        limits: Limits | None = None,
    ) -> None:
        self._command, self._variables = tuple(command), dict(variables or {})
        self._options = {"cwd": folder}
        self._refuses, self._limits = settings == "refuse", limits or Limits()
        self._programs: dict[str, Program] = {}
        self._server: tuple[int, str, web.AppRunner] | None = None  # process, address
        self._lock = threading.Lock()
        self.closes = 0  # number of calls of `close`
        self.makes_branches = True  # False: a request gets one choice

    @staticmethod
    def machine_problems(options: Mapping[str, Any], run: object = None) -> Iterator[str]:
        """Yields that there is no command, or not here."""
        name, *_ = options["command"] or ("",)
        place = os.path.join(options["folder"] or "", name) if "/" in name else name
        if shutil.which(place, path=(options.get("variables") or {}).get("PATH")) is None:
            yield f"command={list(options['command'])}: there is no program {place!r} here; write its path"

    def start(self, problem: Problem, closes: int | None = None) -> Program:
        """Starts the program for a problem. Raises EnvironmentFault if this machine cannot, or after a number
        of `closes` other than this one; ProgramLost if the task cannot be an argument of the command.
        """
        key, options, variables = secrets.token_urlsafe(24), self._options, self._variables
        with self._lock:  # a close comes before, or sees the program
            self.check(closes)
            program = Program(self._command, problem, options, variables, key, self._address(), self._limits)
            self._programs[key] = program  # before it starts: its first request may come at once
            try:
                program.begin()
            except BaseException as error:
                del self._programs[key]
                if isinstance(error, ValueError) or getattr(error, "errno", None) == errno.E2BIG:
                    raise ProgramLost("crashed", f"The task cannot be an argument: {error}.") from None
                if isinstance(error, OSError):
                    raise EnvironmentFault(f"the program {self._command[0]} cannot start: {error}") from None
                raise
        return program

    def check(self, closes: int | None) -> None:
        """Raises EnvironmentFault unless this is the number of `closes`."""
        if closes not in (None, self.closes):
            raise EnvironmentFault("the environment was closed during a turn")

    def end(self, program: Program) -> None:
        """Ends a program, whose key is refused from now on."""
        self._programs.pop(program.key, None)
        program.end()

    def close(self) -> None:
        """Ends all programs, and the server. It can be used again."""
        with self._lock:
            self.closes += 1
            server, self._server = self._server, None
            programs = list(self._programs.values())
        with ThreadPoolExecutor(len(programs) or 1) as pool:  # at once: each may take a second
            list(pool.map(self.end, programs))
        if server is not None and server[0] == os.getpid():
            run(server[2].cleanup())

    def _address(self) -> str:
        if self._server is None or self._server[0] != os.getpid():
            self._server = (os.getpid(), *run(self._serve()))
        return self._server[1]

    async def _serve(self) -> tuple[str, web.AppRunner]:
        app = web.Application(client_max_size=self._limits.request_bytes)
        app.router.add_post("/v1/chat/completions", self._complete)
        app.router.add_post("/v1/completions", self._complete)
        app.router.add_post("/v1/responses", self._respond)
        app.router.add_post("/v1/reward", self._reward)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        listening = socket.create_server(("127.0.0.1", 0))
        await web.SockSite(runner, listening).start()
        return f"http://127.0.0.1:{listening.getsockname()[1]}/v1", runner

    def _program(self, http: web.Request, scores: bool = False) -> Program:
        key = http.headers.get("Authorization", "").removeprefix("Bearer ")
        program = self._programs.get(key.partition(".")[0])
        if program is None or key != (program.reward_key if scores else program.key):
            which = "the key is not the reward_key" if scores else "the key is not OPENAI_API_KEY"
            raise RequestRefused(f"{which} of a running conversation", 401)
        program.count()
        return program

    async def _complete(self, http: web.Request) -> web.StreamResponse:
        is_chat = http.path.endswith("/chat/completions")
        return await self._answered(http, lambda body: read(body, is_chat, self._refuses), _sent_completion)

    async def _answered(
        self, http: web.Request, read_body: Callable[[bytes], Asked], send: _Send
    ) -> web.StreamResponse:
        """Answers a request by the policy's texts, or by the reason why it gets none."""
        program = None
        try:
            program = self._program(http)
            request = read_body(await http.read())
            if request.num_choices > 1 and not (self.makes_branches and request.is_chat):
                raise RequestRefused("n above 1 needs environment.answers.edits=branch, and messages")
            choices = (replace(request, choice=choice) for choice in range(request.num_choices))
            texts = [await program.completed(each) for each in choices]
        except (RequestRefused, web.HTTPRequestEntityTooLarge) as error:
            if program is not None:
                program.count(is_refused=True)
            return _refused(error)
        except asyncio.CancelledError:  # of the program's end, or of the server's
            if program is not None and program.key in self._programs:
                raise
            return _refused(_ENDED)
        return await send(http, request, texts)

    async def _respond(self, http: web.Request) -> web.StreamResponse:
        return await self._answered(http, lambda body: read_responses(body, self._refuses), _sent_response)

    async def _reward(self, http: web.Request) -> web.Response:
        program = None
        try:
            program = self._program(http, scores=True)
            program.reward(json.loads(await http.read())["reward"])
        except (RequestRefused, ValueError, KeyError, TypeError, RecursionError) as error:
            if program is not None:
                program.count(is_refused=True)
            return _refused(
                error if isinstance(error, RequestRefused) else RequestRefused('write {"reward": NUMBER}')
            )
        return web.json_response({})


async def _sent_completion(http: web.Request, request: Asked, texts: Sequence[str]) -> web.StreamResponse:
    if not request.is_streamed:
        return web.json_response(completion(request, *texts))
    lines = [f"data: {json.dumps(chunk)}\n\n" for chunk in chunks(request, *texts)]
    return await _streamed(http, [*lines, "data: [DONE]\n\n"])


async def _sent_response(http: web.Request, request: Asked, texts: Sequence[str]) -> web.StreamResponse:
    (text,) = texts
    if not request.is_streamed:
        return web.json_response(response(request, text))
    return await _streamed(http, map(event_lines, events(request, text)))


async def _streamed(http: web.Request, parts: Iterable[str]) -> web.StreamResponse:
    answer = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await answer.prepare(http)
    for part in parts:
        await answer.write(part.encode())
    return answer


def _refused(error: Exception) -> web.Response:
    status: Any = getattr(error, "status", 400)
    body = {"message": str(error), "type": "invalid_request_error", "param": None, "code": None}
    return web.json_response({"error": body}, status=status)
