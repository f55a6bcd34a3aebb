"""Files that a reader sees whole: the old content or all of the new, never a part."""

from __future__ import annotations

import csv
import errno
import io
import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Any

from bapo_lightning.system.printable import printable


def write_text(path: Path, text: str) -> Path:
    """Writes a file in an existing folder, to the disk; halves of characters become `?`. Returns `path`."""
    partial = path.with_name(f".{path.name}.partial")
    try:
        with partial.open("w", encoding="utf-8", errors="replace") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())  # otherwise a power failure leaves an empty file with the new name
        os.replace(partial, path)
    except OSError:
        partial.unlink(missing_ok=True)
        raise
    return path


def is_disk_full(error: BaseException | None) -> bool:
    """Whether an error, or its cause, says that the disk is full."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            return True
        # torch's writer sets no error number.
        if isinstance(error, RuntimeError) and "inline_container.cc" in str(error):
            return True
        error = error.__cause__ or error.__context__
    return False


def write_json(path: Path, content: object) -> Path:
    """Writes JSON, also of dataclasses, and its folder; returns `path`. ValueError: a number not finite."""
    text = json.dumps(content, indent=2, allow_nan=False, default=_as_object) + "\n"
    path.parent.mkdir(parents=True, exist_ok=True)
    return write_text(path, text)


def write_csv(path: Path, header: Sequence[str], lines: Iterable[Sequence[object]]) -> Path:
    """Writes a table of printable texts in an existing folder; None is an empty cell. Returns `path`."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(lines)
    return write_text(path, printable(text.getvalue()))


def _as_object(value: object) -> dict[str, Any]:
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    raise TypeError(f"{value!r} has no form in JSON")
