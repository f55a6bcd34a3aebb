"""A server that breaks every rule of HTTP and WebSockets; the first part of a path names the rule."""

import asyncio
import base64
import hashlib
import json
import threading
from contextlib import contextmanager, suppress

DEEP = "[" * 200_000 + "]" * 200_000
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"


def whole(body, status="200 OK"):
    """An answer of HTTP as it should be."""
    data = body.encode("utf-8", "surrogatepass") if isinstance(body, str) else body
    head = f"HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
    return head.encode() + data


# Answers that are sent as they are; after them the connection ends.
SENT = {
    "cut": HEAD + b'Content-Length: 1000\r\n\r\n{"da',
    "bad_chunk": HEAD + b"Transfer-Encoding: chunked\r\n\r\nZZ\r\nabc", "bad_status": b"HELLO\r\n\r\n",
    "silent_end": b"", "cut_error": b'HTTP/1.1 500 Boom\r\nContent-Length: 1000\r\n\r\n{"er',
    "gzip": HEAD + b"Content-Encoding: gzip\r\nContent-Length: 4\r\n\r\n\x1f\x8b\x08\0",
    "no_content": b"HTTP/1.1 204 No\r\n\r\n", "empty": whole(""), "html": whole("<html>"),
    "deep": whole(DEEP), "half_character": whole('{"text": "\\ud800"}'),
    "no_utf8": whole(b'{"text": "\xff"}'), "deep_error": whole(DEEP, "400 Bad"),
    "escapes_in_error": whole('{"error": {"message": "\\u001b]0;x\\u0007 no\\n\\nno"}}', "404 Not Found"),
    "list_in_error": whole('{"error": [1], "detail": 5}', "500 Boom"), "odd_status": whole("{}", "999 What"),
    "login": whole("{}", '401 Unauthorized\r\nWWW-Authenticate: Basic realm="x"'),
}  # fmt: skip
# Answers without an end: a beginning, what is repeated, and the seconds between.
ENDLESS = {
    "hang": (b"", b"", 0.05), "drip": (HEAD + b"Content-Length: 1000000\r\n\r\n", b" ", 0.05),
    "endless": (HEAD + b"\r\n", b" " * (1 << 16), 0),
    "endless_error": (b"HTTP/1.1 500 Boom\r\n\r\n", b" " * (1 << 16), 0),
    "headers": (b"HTTP/1.1 200 OK\r\n", b"X-Y: " + b"y" * 500 + b"\r\n", 0),
}  # fmt: skip
REDIRECTS = {
    "redirect": "302 Found\r\nLocation: {url}/canary",
    "redirect_kept": "307 Temporary\r\nLocation: {url}/canary",
    "redirect_loop": "302 Found\r\nLocation: {url}/redirect_loop",
    "redirect_to_file": "302 Found\r\nLocation: file:///etc/passwd",
    "redirect_to_ftp": "302 Found\r\nLocation: ftp://127.0.0.1/x", "redirect_nowhere": "302 Found",
}  # fmt: skip
MODES = [*SENT, *ENDLESS, *REDIRECTS]


def frame(data, code=1, first=0x80, length=None):
    """A frame of a WebSocket from a server; `length` is a lie about it."""
    length = len(data) if length is None else length
    short = bytes([length]) if length < 126 else b"\x7f" + length.to_bytes(8, "big")
    return bytes([first | code]) + short + data


def upgrade(key, more=""):
    """The answer that accepts a WebSocket."""
    accepted = hashlib.sha1((key + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11").encode()).digest()
    head = f"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n{more}"
    return f"{head}Sec-WebSocket-Accept: {base64.b64encode(accepted).decode()}\r\n\r\n".encode()


class Hostile:
    """`answer` makes the bytes of a good answer from path and body; `heads` keeps the heads of questions."""

    def __init__(self, answer=lambda path, body: whole("{}")):
        self.answer, self.heads, self.url = answer, [], ""

    async def serve(self, reader, writer):
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin1")
            self.heads.append(head)
            fields = dict(line.lower().split(": ", 1) for line in head.splitlines()[1:] if ": " in line)
            body = await reader.readexactly(int(fields.get("content-length", 0)))
            path = head.split(" ")[1]
            if "sec-websocket-key" in fields and not path.startswith("/redirect"):
                key = next(line for line in head.splitlines() if line.lower().startswith("sec-websocket-key"))
                await self.talk(path.strip("/"), key.split(": ")[1], reader, writer)
            else:
                await self.reply(path, json.loads(body) if body else None, writer)
        writer.close()

    async def reply(self, path, body, writer):
        mode = path.split("/")[1]
        if mode in ENDLESS:
            begin, more, seconds = ENDLESS[mode]
            writer.write(begin)
            while not writer.is_closing():
                writer.write(more)
                await writer.drain()
                await asyncio.sleep(seconds)
        elif mode in REDIRECTS:
            writer.write(whole("", REDIRECTS[mode].format(url=self.url)))
        else:
            writer.write(SENT.get(mode) or self.answer(path, body) if mode != "silent_end" else b"")
        await writer.drain()

    async def talk(self, mode, key, reader, writer):
        """A WebSocket that answers `{"text": "N"}` to the N-th message, as far as its mode lets it."""
        writer.write(upgrade(key))
        flood = {"pings": frame(b"", 9), "chatter": frame(b'{"text": "0"}')}
        if mode == "banner":
            writer.write(frame(b'{"text": "hello"}'))
        number = 0
        while await reader.read(1 << 16):
            number += 1
            answer = frame(json.dumps({"text": str(number)}).encode())
            odd = {
                "bytes": frame(b"x", 2), "deep": frame(b"[" * 3000), "html": frame(b"<html>"),
                "bad_frame": b"\xff\xff\xff", "no_utf8": frame(b"\xff"), "mute": b"",
                "long": frame(b'"' + b"x" * 60_000 + b'"'), "double": answer * 2,
            }  # fmt: skip
            if mode == "gone":
                return
            writer.write(odd.get(mode, answer))
            while mode in flood and not writer.is_closing():
                writer.write(flood[mode] * 1000)
                await writer.drain()
                await asyncio.sleep(0)
            await writer.drain()


@contextmanager
def serving(hostile):
    """Runs it in a thread; its `url` leads there."""
    loop = asyncio.new_event_loop()
    server = loop.run_until_complete(asyncio.start_server(hostile.serve, "127.0.0.1", 0, limit=1 << 24))
    hostile.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    try:
        yield hostile
    finally:

        async def end():
            server.close()
            tasks = asyncio.all_tasks() - {asyncio.current_task()}
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

        asyncio.run_coroutine_threadsafe(end(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
