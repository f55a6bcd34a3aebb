"""Texts of data, models and files that cannot control the terminal that shows them."""

from __future__ import annotations

import sys
import time
from typing import Any, ClassVar

# C0 and C1 but the ends of lines and tabs, what turns the direction of reading, and halves of characters.
_BIDIRECTIONAL = (0x061C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A))
_SHOWN: dict[int, int | str] = {
    **{code: 0x2400 + code for code in range(0x20)},
    **dict.fromkeys((*range(0x7F, 0xA0), *_BIDIRECTIONAL, *range(0xD800, 0xE000)), 0xFFFD),
    ord("\t"): "\t",
    ord("\n"): "\n",
    ord("\r"): "\n",  # or what follows would stand over what is shown already
}


def printable(text: str) -> str:
    """Returns a text with a visible character in place of each one that controls a terminal."""
    return text.replace("\r\n", "\n").translate(_SHOWN)


class PrintableStream:
    """A stream of text that shows everything as `printable`; other attributes are those of the stream below,
    `rich_proxied_file` is where rich, whose own escapes must pass, writes (see `report.progress.terminal`).
    """

    written_at: ClassVar[float] = 0.0  # `time.monotonic` of the newest text on any such stream

    def __init__(self, stream: Any) -> None:
        self._below = stream
        self.rich_proxied_file = below_all(stream)

    def write(self, text: str) -> int:
        """Writes a text; returns its length."""
        self._below.write(printable(text))
        PrintableStream.written_at = time.monotonic()
        return len(text)

    def writelines(self, lines: Any) -> None:
        """Writes texts."""
        for line in lines:
            self.write(line)

    def __iter__(self) -> Any:
        return iter(self._below)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._below, name)


def below_all(stream: Any) -> Any:
    """The stream below those that change what is written: those of this module and of rich."""
    while (below := getattr(stream, "rich_proxied_file", stream)) is not stream:
        stream = below
    return stream


def print_printable() -> None:
    """Shows whatever this process prints, also at its end, as `printable`."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is not None and not isinstance(stream, PrintableStream):
            setattr(sys, name, PrintableStream(stream))
