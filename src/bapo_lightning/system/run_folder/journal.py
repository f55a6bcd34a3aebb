"""Append-only files of JSON lines that a kill cannot spoil, and their digests."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import Any

from bapo_lightning.system.printable import whole_characters


class JournalDigest:
    """Size and digest of a journal that only grows; each byte is read once."""

    def __init__(self, path: Path) -> None:
        self._path = path  # need not exist
        self._hash = hashlib.sha256()
        self._size = 0

    def read_on(self, size: int | None = None) -> dict[str, Any]:
        """Size in bytes and SHA-256 of everything written so far, or of the first `size` bytes."""
        if self._path.exists():
            with self._path.open("rb") as file:
                file.seek(self._size)
                while block := file.read(1 << 20 if size is None else min(1 << 20, size - self._size)):
                    self._hash.update(block)
                    self._size += len(block)
        return {"bytes": self._size, "sha256": self._hash.hexdigest()}


class Journal:
    """A file whose rows are written when appended and never rewritten; a resume only shortens it."""

    def __init__(self, path: Path, durable: bool = False) -> None:
        """`durable`: every append waits for the disk, so that rows survive a power failure as well."""
        self.path = path
        self._durable = durable

    @property
    def size(self) -> int:
        """Bytes written so far."""
        return self.path.stat().st_size if self.path.exists() else 0

    def append(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Writes one line for each row, all in one system call."""
        text = "".join(json.dumps(row, allow_nan=False, ensure_ascii=False) + "\n" for row in rows)
        if not text:
            return
        with self.path.open("a", encoding="utf-8") as file:
            file.write(whole_characters(text))
            file.flush()
            if self._durable:
                os.fsync(file.fileno())

    def repair(self) -> int:
        """Cuts off a last line without an end, torn by a kill; returns the number of bytes lost."""
        size = whole = self.size
        if size:
            with self.path.open("rb") as file, mmap(file.fileno(), 0, access=ACCESS_READ) as content:
                whole = content.rfind(b"\n") + 1
        self.cut(whole)
        return size - whole

    def cut(self, size: int) -> None:
        """Shortens the file to `size` bytes if it is longer."""
        if self.size > size:
            os.truncate(self.path, size)
