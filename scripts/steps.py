"""What the set-up tells: a line for each step, on a terminal with its seconds. Standard library only."""

from __future__ import annotations

import os
import re
import shutil
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

LOOK_SECONDS = 0.5  # between two looks at the log


def say(text: str) -> None:
    print(f"set-up: {text}", flush=True)


def stop(reason: str) -> NoReturn:
    """Ends with one line: what is wrong, and what to do."""
    sys.exit(f"set-up failed: {reason}")


@contextmanager
def step(text: str, log: Path | None = None) -> Iterator[None]:
    """Context that says what is done; on a terminal also for how long, and what pip's log says of it."""
    if not sys.stdout.isatty():
        say(text)
        yield
        return
    started, ended = time.monotonic(), threading.Event()

    def draw(action: str, end: str) -> None:
        line = in_line(text, time.monotonic() - started, action, shutil.get_terminal_size().columns)
        print(f"\r\033[K{line}", end=end, flush=True)

    def redraw() -> None:
        while not ended.wait(LOOK_SECONDS):
            draw(newest_action(log) if log else "", end="")

    thread = threading.Thread(target=redraw, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        draw("", end="\n")


def in_line(text: str, seconds: float, action: str, columns: int) -> str:
    """A step in less than `columns` characters. An action replaces what the text has in brackets."""
    if action:
        text = text.partition(" (")[0]
    head, tail = f"set-up: {text}", f", {seconds:.0f} s"
    room = columns - 1 - len(tail)
    head = head if len(head) <= room else f"{head[: room - 3]}..."
    return (head + tail + (f": {action}" if action else ""))[: columns - 1]


def newest_action(log: Path) -> str:
    """The newest line of pip's log that begins something: "Downloading torch-2.13.0+cpu (196 MB)"."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - 4096))
            lines = file.read().decode(errors="replace").splitlines()
    except OSError:
        return ""
    begun = (
        line.strip() for line in reversed(lines) if re.match(r"\s*(Collecting|Downloading|Install)", line)
    )
    return next(begun, "")
