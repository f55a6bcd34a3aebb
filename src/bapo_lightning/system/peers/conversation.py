"""Questions and answers over a WebSocket, one answer for each question."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Mapping
from typing import Any

import aiohttp

from bapo_lightning.system.peers import PeerFault, PeerTooLate, PeerUnasked
from bapo_lightning.system.peers.answers import Kind, judged, shortened
from bapo_lightning.system.peers.loop import run, spawn
from bapo_lightning.system.peers.wire import CLOSE_SECONDS, MOST_BYTES, Wire, faults

MOST_PINGS = 100  # per minute; peers ping to see whether a connection is alive, every few seconds at most


class Conversation:
    """One connection, used by one thread at a time. Every method may raise PeerFault, after which only
    `close` is useful.

    A peer that speaks without being asked ends the conversation: its message could be mistaken for the answer
    to the next question.
    """

    def __init__(self, url: str, seconds: float, most_bytes: int = MOST_BYTES) -> None:
        """Connects within `seconds`; messages have at most `most_bytes`."""
        self._url = url
        self._talk = run(_Talk.begun(url, seconds, most_bytes))

    def ask(self, kind: type[Kind], question: Mapping[str, Any], seconds: float) -> Kind:
        """Returns the peer's answer, which must come within `seconds`. Raises PeerTooLate otherwise."""
        return judged(kind, run(self._talk.ask(json.dumps(question), seconds)), self._url)

    def listen(self, seconds: float) -> None:
        """Waits for an unasked message of the peer, which is a PeerFault."""
        run(self._talk.listen(seconds))

    def close(self, farewell: Mapping[str, Any] | None = None) -> None:
        """Ends the conversation within `CLOSE_SECONDS`, with a last message to a peer without a fault."""
        run(self._talk.close(None if farewell is None else json.dumps(farewell)))


class _Talk:
    """A conversation inside the event loop, which always reads: peers expect answers to pings."""

    def __init__(self, url: str, wire: Wire, connection: aiohttp.ClientWebSocketResponse) -> None:
        self._url, self._wire, self._connection = url, wire, connection
        self._answer: asyncio.Future[str] | None = None  # to the current question
        self._fault: PeerFault | None = None
        self._reader = spawn(self._read(), self._end)

    @classmethod
    async def begun(cls, url: str, seconds: float, most_bytes: int) -> _Talk:
        wire = Wire()
        try:
            return cls(url, wire, await wire.open_socket(url, seconds, most_bytes))
        except BaseException:
            await wire.close()
            raise

    async def listen(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
        for _ in range(3):  # rounds of the loop, in which the reader finds unasked messages
            await asyncio.sleep(0)
        if self._fault is not None:
            raise self._fault

    async def ask(self, question: str, seconds: float) -> str:
        await self.listen(0)
        self._answer = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(seconds):
                with contextlib.suppress(ConnectionError, aiohttp.ClientError):  # the reader has the reason
                    await self._connection.send_str(question)
                return await self._answer
        except TimeoutError:
            self._fault = PeerTooLate(f"{self._url} did not answer within {seconds:g} s")
            raise self._fault from None
        finally:
            self._answer = None

    async def close(self, farewell: str | None) -> None:
        self._reader.cancel()
        seconds = CLOSE_SECONDS if self._fault is None else 0  # no agreement, in which a flood would be read
        with contextlib.suppress(Exception):  # whatever a peer does meanwhile, the connection is cut below
            async with asyncio.timeout(seconds):
                if farewell is not None and self._fault is None:
                    await self._connection.send_str(farewell)
                await self._connection.close()
        await self._wire.close()

    async def _read(self) -> None:
        pings, since = 0, asyncio.get_running_loop().time()
        with faults(self._url, 0):
            async for message in self._connection:
                if message.type in (aiohttp.WSMsgType.PING, aiohttp.WSMsgType.PONG):
                    now = asyncio.get_running_loop().time()
                    pings, since = (pings + 1, since) if now - since < 60 else (1, now)
                    if pings > MOST_PINGS:
                        raise PeerFault(f"{self._url} sent more than {MOST_PINGS} pings in a minute")
                    if message.type is aiohttp.WSMsgType.PING:
                        await self._connection.pong(message.data)
                    continue
                if message.type is aiohttp.WSMsgType.ERROR:
                    raise PeerFault(f"{self._url} broke off: {shortened(str(message.data))}")
                if message.type is not aiohttp.WSMsgType.TEXT:
                    raise PeerFault(f"{self._url} sent bytes where a text is expected")
                if self._answer is None or self._answer.done():
                    raise PeerUnasked(f"{self._url} spoke without being asked", message.data)
                self._answer.set_result(message.data)
            raise PeerFault(f"{self._url} closed the connection")

    def _end(self, error: BaseException) -> None:
        self._fault = error if isinstance(error, PeerFault) else PeerFault(f"{self._url}: {error}")
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(self._fault)
