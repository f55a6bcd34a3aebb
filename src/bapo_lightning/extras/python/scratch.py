"""The scratch folder of one program, and files that it keeps on the disk but not visibly there. Folders
of hosts that were killed are removed by the next host that starts.
"""

from __future__ import annotations

import fcntl
import os
import stat
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_MOST_FILES = 1000
_PREFIX = "bapo-python-"


@contextmanager
def scratch() -> Iterator[Path]:
    """Context with an empty folder, which is locked as long as this process lives, and removed at the end."""
    while True:
        folder = Path(os.path.realpath(tempfile.mkdtemp(prefix=_PREFIX)))
        lock = os.open(folder, os.O_RDONLY)
        fcntl.flock(lock, fcntl.LOCK_EX)
        if folder.exists():  # otherwise it was swept before it was locked
            break
        os.close(lock)
    try:
        yield folder
    finally:
        remove(folder)
        os.close(lock)


def remove_abandoned() -> None:
    """Removes the folders of hosts that were killed with their trainer: no process locks them."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with suppress(OSError):  # of another user, locked, or gone in the meantime
            lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                remove(folder)
            finally:
                os.close(lock)


def is_too_large(folder: Path, pid: int, max_bytes: int) -> bool:
    """Whether a program's files are too large or too many (counting stops then), or some are
    hidden: in folders that cannot be listed, or whose path is too long.

    Args:
        folder: its real path, without symbolic links.
        pid: the program, whose deleted files count as long as it has them open or in its memory.
        max_bytes: of all files together.
    """
    total, count, folders = 0, 0, [str(folder)]
    try:
        total = sum(_deleted(folder, pid, max_bytes).values())
    except (FileNotFoundError, ProcessLookupError):  # it has ended
        pass
    except OSError:
        return True
    while folders and total <= max_bytes:
        try:
            with os.scandir(folders.pop()) as entries:
                for entry in entries:
                    count += 1
                    total += _bytes(entry.stat(follow_symlinks=False))
                    if total > max_bytes or count > _MOST_FILES:
                        return True
                    if entry.is_dir(follow_symlinks=False):
                        folders.append(entry.path)
        except FileNotFoundError:  # deleted in the meantime
            continue
        except OSError:
            return True
    return total > max_bytes


def _deleted(folder: Path, pid: int, max_bytes: int) -> dict[int, int]:
    """Bytes of a program's files that are no longer in any folder, by inode. For a file that is only mapped
    into memory the kernel shows no size, so it counts as the largest possible.
    """
    sizes = {}
    for line in Path(f"/proc/{pid}/maps").read_bytes().splitlines():
        fields = line.split(maxsplit=5)
        if fields[-1].startswith(os.fsencode(folder) + b"/") and fields[-1].endswith(b" (deleted)"):
            sizes[int(fields[4])] = max_bytes
    for descriptor in os.listdir(f"/proc/{pid}/fd"):
        with suppress(FileNotFoundError):  # closed in the meantime
            status = os.stat(f"/proc/{pid}/fd/{descriptor}")
            if stat.S_ISREG(status.st_mode) and status.st_nlink == 0:
                sizes[status.st_ino] = _bytes(status)
    return sizes


def _bytes(status: os.stat_result) -> int:
    return status.st_blocks * 512


def remove(folder: Path) -> None:
    """Deletes a scratch folder, however deep its folders are and whatever their rights."""
    with suppress(OSError):
        os.rmdir(folder)
        return
    for command in (["rm", "-rf"], ["chmod", "-R", "u+rwx"], ["rm", "-rf"]):
        if folder.exists():
            subprocess.run([*command, str(folder)], check=False, stderr=subprocess.DEVNULL)
