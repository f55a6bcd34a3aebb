"""Questions over HTTP: one question, one connection, one answer with a limit on its bytes and its time."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import socket
from collections.abc import AsyncGenerator, Iterator, Mapping
from typing import Any, Self
from weakref import WeakSet

import aiohttp

from bapo_lightning.system.peers import PeerFault, PeerRefusal, PeerTooLate
from bapo_lightning.system.peers.answers import Kind, judged, reason_of, shortened
from bapo_lightning.system.peers.loop import run

MOST_BYTES = 1 << 24  # of an answer, unless the question allows more
MOST_ERROR_BYTES = 1 << 16  # of an answer with an error: its reason is at the beginning
MOST_FILES = 1 << 16  # open files of a process, if the system allows so many
CLOSE_SECONDS = 1.0  # for a peer to agree that a connection ends


def ask(
    kind: type[Kind],
    url: str,
    seconds: float,
    body: Mapping[str, Any] | None = None,
    secret: str | None = None,
    most_bytes: int = MOST_BYTES,
) -> Kind:
    """Returns a peer's answer, due within `seconds`; from any thread. Raises PeerRefusal or PeerFault.

    The method is GET, or POST if there is a `body`; `secret` is the token of "Authorization: Bearer".
    """
    return judged(kind, fetch(url, seconds, body, secret, most_bytes), url)


def fetch(
    url: str,
    seconds: float,
    body: Mapping[str, Any] | None = None,
    secret: str | None = None,
    most_bytes: int = MOST_BYTES,
) -> bytes:
    """The unchanged bytes of an answer; see `ask`."""

    async def once() -> bytes:
        async with Wire() as wire:
            return await wire.fetch(url, seconds, body, secret, most_bytes)

    return run(once())


class Wire:
    """Connections of the running event loop, which end when the `async with` ends, whatever peers do."""

    def __init__(self) -> None:
        self._sockets: WeakSet[socket.socket] = WeakSet()
        trace = aiohttp.TraceConfig()
        trace.on_request_redirect.append(_refuse_redirect)
        self._session = aiohttp.ClientSession(
            # A connection is never reused: a peer could have left an answer to another question in it.
            connector=aiohttp.TCPConnector(
                limit=most_connections(), force_close=True, socket_factory=self._new_socket
            ),
            timeout=aiohttp.ClientTimeout(total=None),
            cookie_jar=aiohttp.DummyCookieJar(),
            headers={"Accept-Encoding": "identity"},
            auto_decompress=False,  # a small message could become huge
            trace_configs=[trace],
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Ends all connections, even if their peers do not read."""
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(CLOSE_SECONDS):
                    await self._session.close()
        finally:
            for each in list(self._sockets):
                with contextlib.suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)  # its transport notices and closes it

    async def ask(
        self,
        kind: type[Kind],
        url: str,
        seconds: float,
        body: Mapping[str, Any] | None = None,
        most_bytes: int = MOST_BYTES,
        from_its_head: bool = False,
    ) -> Kind:
        """As the function `ask`. `from_its_head`: `seconds` start at the answer's head, if the caller knows
        in another way that the peer is working on it.
        """
        return judged(kind, await self.fetch(url, seconds, body, None, most_bytes, from_its_head), url)

    async def fetch(
        self,
        url: str,
        seconds: float,
        body: Mapping[str, Any] | None = None,
        secret: str | None = None,
        most_bytes: int = MOST_BYTES,
        from_its_head: bool = False,
    ) -> bytes:
        """As the function `fetch`."""
        with faults(url, seconds):
            async with asyncio.timeout(None if from_its_head else seconds) as limit:
                async with self._request(url, body, secret) as response:
                    if from_its_head:
                        limit.reschedule(asyncio.get_running_loop().time() + seconds)
                    return await _whole(response, url, most_bytes)

    async def lines(
        self, url: str, body: Mapping[str, Any], most_bytes: int, seconds: float
    ) -> AsyncGenerator[bytes, None]:
        """The lines of an answer that arrives in pieces, without line ends; `seconds` limit a refusal. The
        caller limits the time, as it knows what may take long, and closes the iterator.
        """
        with faults(url, seconds):
            async with self._request(url, body, None) as response:
                if not _is_good(response):
                    async with asyncio.timeout(seconds):
                        await _whole(response, url, MOST_ERROR_BYTES)
                line, total = bytearray(), 0
                async for chunk in response.content.iter_any():
                    if (total := total + len(chunk)) > most_bytes:
                        raise PeerFault(f"{url} sent more than {most_bytes} bytes")
                    *ends, begin = chunk.split(b"\n")
                    for end in ends:
                        line += end
                        yield bytes(line)
                        line.clear()
                    line += begin

    async def open_socket(self, url: str, seconds: float, most_bytes: int) -> aiohttp.ClientWebSocketResponse:
        """A WebSocket whose messages have at most so many bytes."""
        with faults(url, seconds):
            async with asyncio.timeout(seconds):
                patience = aiohttp.ClientWSTimeout(ws_close=CLOSE_SECONDS)
                return await self._session.ws_connect(
                    url, max_msg_size=most_bytes, timeout=patience, autoping=False
                )

    def _request(
        self, url: str, body: Mapping[str, Any] | None, secret: str | None
    ) -> contextlib.AbstractAsyncContextManager[aiohttp.ClientResponse]:
        headers = {"Authorization": f"Bearer {secret}"} if secret else {}
        return self._session.request("GET" if body is None else "POST", url, json=body, headers=headers)

    def _new_socket(self, address: Any) -> socket.socket:
        family, kind, protocol, _, _ = address
        created = socket.socket(family, kind, protocol)
        self._sockets.add(created)
        return created


@contextlib.contextmanager
def faults(url: str, seconds: float) -> Iterator[None]:
    """Turns everything that can go wrong with a peer that must answer within `seconds` into a PeerFault."""
    try:
        yield
    except PeerFault:
        raise
    except TimeoutError:
        raise PeerTooLate(f"{url} did not answer within {seconds:g} s") from None
    except Exception as error:
        cause: Any = error.os_error if isinstance(error, aiohttp.ClientConnectorError) else error
        has_number = isinstance(cause, OSError) and (cause.errno or 0) > 0
        text = os.strerror(cause.errno) if has_number else str(cause) or type(cause).__name__
        raise PeerFault(f"{url} does not answer: {shortened(text)}") from None


def _is_good(response: aiohttp.ClientResponse) -> bool:
    return 200 <= response.status < 300


async def _whole(response: aiohttp.ClientResponse, url: str, most_bytes: int) -> bytes:
    """The whole answer. Raises PeerRefusal for an error answer, PeerFault for one that is too long."""
    is_good, content = _is_good(response), bytearray()
    most = most_bytes if is_good else MOST_ERROR_BYTES
    async for chunk in response.content.iter_any():
        content += chunk
        if len(content) > most and is_good:
            raise PeerFault(f"{url} sent more than {most} bytes")
        if len(content) > most:
            break
    if not is_good:
        reason = reason_of(bytes(content), response.status)
        raise PeerRefusal(f"{url} refused the request: {reason}", response.status)
    return bytes(content)


async def _refuse_redirect(_: object, __: object, params: aiohttp.TraceRequestRedirectParams) -> None:
    target = shortened(params.response.headers.get("Location", "nowhere"))
    raise PeerFault(f"{params.url} wants to redirect the request to {target}, which is never followed")


def most_connections() -> int:
    """Returns how many connections this process may have at once: half of the files that it may have open,
    after raising the limit on open files as far as the system allows.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, MOST_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            soft = wanted
    return max(1, (MOST_FILES if soft == resource.RLIM_INFINITY else min(soft, MOST_FILES)) // 2)
