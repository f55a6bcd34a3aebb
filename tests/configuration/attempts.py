"""Tries work that may end in any way, in a fork of this process with bounds of time and memory: how it ended,
and what it wrote.

The process must have one thread, and everything heavy imported.
"""

import json
import math
import os
import resource
import signal
import sys
import time
import traceback
from contextlib import suppress
from dataclasses import dataclass

import psutil

from bapo_lightning.system.orphans import end_with_parent

# How an attempt ends. The first three are right.
RAN, REFUSED, STOPPED = "ran", "refused in words", "ended in words later"
TRACEBACK, HANG, KILLED, NAN, SILENT = "traceback", "hang", "killed", "NaN", "failed without a word"
RIGHT = (RAN, REFUSED, STOPPED)
RAW = ("Traceback (most recent call last)", "PanicException", "Exception ignored", "Error executing job")
GIGABYTE = 1 << 30


@dataclass(frozen=True)
class Attempt:
    """How it ended, one of the words above, what it wrote, and the seconds it took."""

    ended: str
    text: str
    seconds: float

    @property
    def is_right(self):
        return self.ended in RIGHT

    @property
    def last_line(self):
        """What tells most: the last line of a traceback, or of all."""
        lines = [line for line in self.text.splitlines() if line.strip()]
        return lines[-1][:300] if lines else ""


def attempt(work, folder, seconds=60, gigabytes=6):
    """Runs `work`, which returns an exit code, in `folder`, which is made."""
    folder.mkdir(parents=True)
    written, began = folder / "output.txt", time.monotonic()
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        _become(work, folder, written, gigabytes)
    code = _code(child, began + seconds)
    text = written.read_text(errors="replace") if written.exists() else ""
    return Attempt(_ended(code, text, folder), text, time.monotonic() - began)


def _become(work, folder, written, gigabytes):
    code = 70
    try:
        os.setsid()
        end_with_parent(os.getppid())
        resource.setrlimit(resource.RLIMIT_DATA, (gigabytes * GIGABYTE,) * 2)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        os.chdir(folder)
        file = os.open(written, os.O_CREAT | os.O_WRONLY | os.O_APPEND)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(file, 1)
        os.dup2(file, 2)
        sys.stdout, sys.stderr = sys.__stdout__, sys.__stderr__  # pytest has others
        code = work() or 0
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        with suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def _code(child, deadline):
    """Its exit code, minus a signal's number, or None after the deadline; nothing of it is left."""
    while True:
        done, status = os.waitpid(child, os.WNOHANG)
        late = time.monotonic() > deadline
        if done or late:
            break
        time.sleep(0.02)
    left = psutil.Process(child).children(recursive=True) if not done else []
    for process in left:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    with suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    if not done:
        os.waitpid(child, 0)
        return None
    return os.waitstatus_to_exitcode(status)


def _ended(code, text, folder):
    if code is None:
        return HANG
    if any(sign in text for sign in RAW):
        return TRACEBACK
    if code < 0:
        return KILLED
    if code == 0:
        return NAN if _has_nan(folder) else RAN
    if "error: " not in text and "finished after" not in text and "usage: " not in text:
        return SILENT
    return STOPPED if any(folder.glob("**/metrics.jsonl")) else REFUSED


def _has_nan(folder):
    rows = [line for file in folder.glob("**/metrics.jsonl") for line in file.read_text().splitlines()]
    values = [value for row in rows for value in json.loads(row).values()]
    return any(isinstance(value, float) and not math.isfinite(value) for value in values)
