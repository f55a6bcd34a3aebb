"""Makes texts of data, models and files unable to control the terminal that shows them."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any, ClassVar, TextIO

# C0 and C1 except line ends and tabs, characters that turn the reading direction, and halves of characters.
_BIDIRECTIONAL = (0x061C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A))
_SHOWN: dict[int, int | str] = {
    **{code: 0x2400 + code for code in range(0x20)},
    **dict.fromkeys((*range(0x7F, 0xA0), *_BIDIRECTIONAL, *range(0xD800, 0xE000)), 0xFFFD),
    ord("\t"): "\t",
    ord("\n"): "\n",
    ord("\r"): "\n",  # otherwise the following text would overwrite what is shown
}


def as_typed(make: str, command: str) -> str:
    """Returns a command to type: with `make` at the top of a clone, of the package elsewhere."""
    in_clone = Path("Makefile").is_file() and Path("src/bapo_lightning").is_dir()
    return f"make {make}" if in_clone else f"python -m bapo_lightning {command}"


def printable(text: str) -> str:
    """Returns a text with a visible character in place of each one that controls a terminal."""
    return text.replace("\r\n", "\n").translate(_SHOWN)


def whole_characters(text: str) -> str:
    """Returns a text that UTF-8 can hold: two halves of a character are joined, a lone one becomes U+FFFD."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def read_back(value: Any) -> Any:
    """Returns a value as it comes back from JSON: pairs as lists, keys as texts, whole characters. Raises
    TypeError, ValueError or RecursionError if it cannot be written as JSON, such as NaN.
    """
    return json.loads(whole_characters(json.dumps(value, ensure_ascii=False, allow_nan=False)))


class PrintableStream:
    """A text stream that shows everything as `printable`; other attributes belong to the stream below.
    rich, whose own escapes must pass, writes to `rich_proxied_file` (see `report.progress.terminal`).
    """

    written_at: ClassVar[float] = 0.0  # `time.monotonic` of the newest text on any such stream

    def __init__(self, stream: Any) -> None:
        self._below = stream
        self.rich_proxied_file = below_all(stream)

    def write(self, text: str) -> int:
        """Writes a text; returns its length."""
        try:
            self._below.write(printable(text))
        except BrokenPipeError:
            self._discard()
        PrintableStream.written_at = time.monotonic()
        return len(text)

    def flush(self) -> None:
        """Writes what is held back."""
        try:
            self._below.flush()
        except BrokenPipeError:
            self._discard()

    def _discard(self) -> None:
        # The reader has left, as after `| head`. The run continues, and later texts are discarded.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self._below.fileno())
        os.close(nowhere)

    def writelines(self, lines: Any) -> None:
        """Writes texts."""
        for line in lines:
            self.write(line)

    def __iter__(self) -> Any:
        return iter(self._below)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._below, name)


def below_all(stream: Any) -> Any:
    """The stream below all wrappers that change the text, by this module or by rich."""
    while (below := getattr(stream, "rich_proxied_file", stream)) is not stream:
        stream = below
    return stream


def print_printable() -> None:
    """Shows whatever this process prints, also at its end, as `printable`."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is not None and not isinstance(stream, PrintableStream):
            setattr(sys, name, PrintableStream(stream))


def say(text: str, stream: TextIO | None = None) -> None:
    """Prints lines on a stream, standard output by default, and flushes it.

    The text and its end are one write: in a notebook, rich's live bars take a text without a line end for the
    beginning of the next one, and print it again and again.
    """
    stream = sys.stdout if stream is None else stream
    stream.write(f"{text}\n")
    stream.flush()
