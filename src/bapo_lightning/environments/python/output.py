"""Bounded excerpt of a text of any length, kept while it is read."""

from __future__ import annotations

import os

_READ_BYTES = 1 << 16


class Output:
    """Beginning and end of a text, together of at most `max_bytes`."""

    def __init__(self, max_bytes: int) -> None:
        self._head, self._tail = bytearray(), bytearray()
        self._head_bytes, self._tail_bytes = max_bytes - max_bytes // 2, max_bytes // 2
        self._left_out = 0

    def add(self, data: bytes) -> None:
        """Takes more of the text."""
        taken = self._head_bytes - len(self._head)
        self._head += data[:taken]
        self._tail += data[taken:]
        surplus = max(0, len(self._tail) - self._tail_bytes)
        del self._tail[:surplus]
        self._left_out += surplus

    def read(self, pipe: int) -> bool:
        """Takes what a pipe holds that does not block; returns false at its end."""
        try:
            data = os.read(pipe, _READ_BYTES)
        except BlockingIOError:
            return True
        self.add(data)
        return bool(data)

    @property
    def kept(self) -> bytes:
        """Both, one behind the other."""
        return bytes(self._head + self._tail)

    def text(self) -> str:
        """Returns the text, with a note where something was left out."""
        if not self._left_out:
            return self.kept.decode(errors="replace")
        head, tail = self._head.decode(errors="replace"), self._tail.decode(errors="replace")
        return f"{head}\n[{self._left_out} bytes left out]\n{tail}"
