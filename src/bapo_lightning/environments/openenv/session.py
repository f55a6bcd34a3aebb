"""Sessions of an OpenEnv server: JSON over a WebSocket, and a world of its own for each connection.

    {"type": "reset", "data": {"seed": 7}}  ->  {"type": "observation", "data": SEEN}
    {"type": "step", "data": ACTION}        ->  SEEN: {"observation": {...}, "reward": 0.5, "done": false}
    whatever it refuses                     ->  {"type": "error", "data": {"code": ..., "message": ...}}

Source: `openenv.core.env_server` of openenv-core 0.3.0 and openenv 0.10.0, which speak alike.
"""

from __future__ import annotations

import asyncio
import json
import os
import threading
from collections.abc import Coroutine, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import Any

import aiohttp

MOST_BYTES = 100 << 20  # of a message, as OpenEnv's own client takes
CLOSE_SECONDS = 1.0  # for a server to agree that a session ends
AT_CAPACITY = "CAPACITY_REACHED"
ENDING = ("FACTORY_ERROR", "SESSION_ERROR")  # codes after which the server closes the session


class SessionLost(Exception):
    """The session is gone: the server died, closed it, or did not answer in time."""


class TooLate(SessionLost):
    """The server did not answer in time."""


class Refusal(Exception):
    """The server could not do what it was asked; the session goes on unless the code is of its end."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True, slots=True)
class Seen:
    """What a world shows after a reset or a step."""

    observation: dict[str, Any]
    reward: float | None
    is_done: bool


class Session:
    """One connection, which one thread uses at a time. Raises SessionLost where it cannot be opened."""

    def __init__(self, url: str, seconds: float) -> None:
        self._seconds = seconds
        self._connection = _run(_opened(url, seconds))

    def reset(self, options: Mapping[str, Any]) -> Seen:
        """Begins an episode. Raises Refusal, SessionLost or TooLate."""
        return self._ask({"type": "reset", "data": dict(options)})

    def step(self, action: Mapping[str, Any]) -> Seen:
        """Takes an action. Raises Refusal, SessionLost or TooLate."""
        return self._ask({"type": "step", "data": dict(action)})

    def close(self) -> None:
        """Ends the session, at the server too."""
        with suppress(SessionLost):
            _run(self._connection.close())

    def _ask(self, message: dict[str, Any]) -> Seen:
        try:
            answer = _run(self._connection.ask(message, self._seconds))
            kind, data = answer["type"], answer["data"]
            if kind == "error":
                raise Refusal(data.get("code", ""), _told(data))
            reward = data.get("reward")
            return Seen(
                data["observation"], None if reward is None else float(reward), bool(data.get("done"))
            )
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise SessionLost(f"no message of OpenEnv came back ({type(error).__name__}: {error})") from None


class _Connection:
    """Reads all the time, as servers close connections whose client leaves pings without an answer."""

    def __init__(self, client: aiohttp.ClientSession, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._client, self._socket = client, socket
        self._inbox: asyncio.Queue[str | None] = asyncio.Queue()
        self._reader = asyncio.create_task(self._read())

    async def ask(self, message: dict[str, Any], seconds: float) -> Any:
        with suppress(ConnectionError, aiohttp.ClientError):  # why it was closed may lie in the inbox
            await self._socket.send_json(message)
        try:
            async with asyncio.timeout(seconds):
                answer = await self._inbox.get()
        except TimeoutError:
            raise TooLate(f"no answer within {seconds:g} s") from None
        if answer is None:
            self._inbox.put_nowait(None)
            raise SessionLost("the server closed the connection")
        return json.loads(answer)

    async def close(self) -> None:
        with suppress(ConnectionError, aiohttp.ClientError):
            await self._socket.send_json({"type": "close"})
        await self._socket.close()
        await self._client.close()
        self._reader.cancel()

    async def _read(self) -> None:
        async for message in self._socket:
            if message.type is aiohttp.WSMsgType.TEXT:
                self._inbox.put_nowait(message.data)
        self._inbox.put_nowait(None)


async def _opened(url: str, seconds: float) -> _Connection:
    client = aiohttp.ClientSession()
    try:
        async with asyncio.timeout(seconds):
            patience = aiohttp.ClientWSTimeout(ws_close=CLOSE_SECONDS)
            socket = await client.ws_connect(url, max_msg_size=MOST_BYTES, timeout=patience)
    except (OSError, TimeoutError, aiohttp.ClientError) as error:
        await client.close()
        raise SessionLost(f"{type(error).__name__}: {error}") from None
    return _Connection(client, socket)


@cache
def _loop(owner: int) -> asyncio.AbstractEventLoop:
    """The loop of this process; a fork has no thread that runs that of its parent."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="openenv", daemon=True).start()
    return loop


def _run(coroutine: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run_coroutine_threadsafe(coroutine, _loop(os.getpid())).result()


def _told(data: Mapping[str, Any]) -> str:
    """The message of an error, with the first field that a validation refused."""
    message = str(data.get("message", "no message"))
    for error in (data.get("errors") or [])[:1]:
        where = ".".join(map(str, error.get("loc", ())))
        return f"{message}: {where or 'action'}: {error.get('msg')}"
    return message
