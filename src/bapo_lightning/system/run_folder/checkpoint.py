"""A checkpoint on disk: a folder that a reader sees whole or not at all, and can check to the last byte.

    checkpoints/update000080/
        trainer.ckpt     Lightning's: policy, optimizer, schedule, loops, callbacks (a folder when sharded)
        data.pt          data side and random generators of the controller (rank 0), for any number of ranks
        checkpoint.json  run, update, version, sizes and digests of the other files and of the run's journals

It is written under a hidden name, flushed to the disk and renamed.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bapo_lightning.system.errors import CheckpointError
from bapo_lightning.system.run_folder.record import SCHEDULE_FILE, TOKEN_FILE

FORMAT = 4
TRAINER_FILE = "trainer.ckpt"
DATA_FILE = "data.pt"
MANIFEST = "checkpoint.json"
# Files of the run folder whose sizes and digests are kept, so that a resume can check and truncate them.
JOURNALS = ("metrics.jsonl", "rollouts.jsonl", "ledger.jsonl", TOKEN_FILE, SCHEDULE_FILE)
Fingerprint = dict[str, Any]  # bytes, sha256
READERS = 8  # shards that are checked at the same time
_SHARD = re.compile(r"__(\d+)_\d+\.distcp")  # torch's name for a file that a rank writes
_NAME = re.compile(r"update(\d{6,})")
_LEFTOVER = re.compile(r"\.update\d{6,}\.(partial|removed)")


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint whose every byte was verified."""

    path: Path
    update: int  # updates of the run that are done, including skipped ones
    version: int  # policy version: number of updates that changed the weights
    num_ranks: int
    run: str  # id of the run that wrote it
    journals: Mapping[str, Fingerprint]  # of each of the run's journals at that time


def checkpoint_name(update: int) -> str:
    """Name of the folder of a checkpoint after `update` updates."""
    return f"update{update:06d}"


def partial_folder(root: Path, update: int) -> Path:
    """Folder that a checkpoint is written to before it is complete."""
    return root / f".{checkpoint_name(update)}.partial"


def list_checkpoints(root: Path) -> list[Path]:
    """Lists all complete checkpoint folders, intact or corrupt, the newest first."""
    folders = [path for path in root.iterdir() if _NAME.fullmatch(path.name)] if root.is_dir() else []
    return sorted(folders, key=lambda path: int(path.name.removeprefix("update")), reverse=True)


def fingerprints(partial: Path, rank: int) -> dict[str, Fingerprint]:
    """Sizes and digests, by name, of the files in a partial folder that this rank wrote: its shards, and on
    rank 0 all other files. They are on the disk when this returns.
    """
    by_name = {}
    for path in sorted(partial.rglob("*")):
        writer = _SHARD.fullmatch(path.name)
        if path.is_file() and (int(writer[1]) if writer else 0) == rank:
            sync(path)
            name = path.relative_to(partial).as_posix()
            by_name[name] = {"bytes": path.stat().st_size, "sha256": digest(path)}
    return by_name


def commit(
    root: Path,
    update: int,
    version: int,
    num_ranks: int,
    run: str,
    journals: Mapping[str, Fingerprint],
    files: Mapping[str, Fingerprint],
) -> Path:
    """Turns the partial folder of `update`, whose files are all written, into a checkpoint; returns its
    folder. `files`: the `fingerprints` of all ranks.
    """
    partial, target = partial_folder(root, update), root / checkpoint_name(update)
    content = {
        "format": FORMAT,
        "update": update,
        "version": version,
        "num_ranks": num_ranks,
        "run": run,
        "journals": dict(journals),
        "files": dict(sorted(files.items())),
    }
    sealed = {"content": content, "sha256": _seal(content)}
    (partial / MANIFEST).write_text(json.dumps(sealed, indent=1) + "\n", encoding="utf-8")
    folders = [path for path in partial.rglob("*") if path.is_dir()]
    for path in [partial / MANIFEST, *folders, partial]:
        sync(path)
    if target.exists():
        _remove(target)
    partial.rename(target)
    sync(root)
    return target


def verify(folder: Path) -> Checkpoint:
    """Reads a checkpoint and checks every byte. Raises CheckpointError with the file that is at fault."""
    content = _content(folder)
    with ThreadPoolExecutor(min(READERS, os.cpu_count() or 1)) as pool:
        list(pool.map(lambda file: _verify_file(folder / file[0], file[1]), content["files"].items()))
    names = ("update", "version", "num_ranks", "run", "journals")
    checkpoint = Checkpoint(folder, **{name: content[name] for name in names})
    if folder.name != checkpoint_name(checkpoint.update):
        raise CheckpointError(f"{folder} holds update {checkpoint.update}: it was renamed")
    return checkpoint


def last_journals(root: Path) -> Mapping[str, Fingerprint]:
    """Sizes and digests of a run's journals at its newest checkpoint, whose other files are not read. Raises
    CheckpointError if there is none, or its list is corrupt.
    """
    newest = next(iter(list_checkpoints(root)), None)
    if newest is None:
        raise CheckpointError(f"{root} has no checkpoint, which holds the digests of its run's records")
    journals: Mapping[str, Fingerprint] = _content(newest)["journals"]
    return journals


def prune(root: Path, keep: int) -> None:
    """Removes all checkpoints except the newest `keep`."""
    for folder in list_checkpoints(root)[keep:]:
        _remove(folder)


def remove_leftovers(root: Path) -> None:
    """Removes checkpoints that a kill left half written or half removed."""
    for path in list(root.iterdir()) if root.is_dir() else []:
        if _LEFTOVER.fullmatch(path.name):
            _delete(path)


def set_aside(folder: Path) -> Path:
    """Renames a checkpoint that is corrupt, or newer than the one a run continues from, so that nothing reads
    it any more; returns its new path.
    """
    target = folder.with_name(f"superseded-{folder.name}")
    if target.exists():
        _delete(target)
    return folder.rename(target)


def digest(path: Path) -> str:
    """SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sync(path: Path) -> None:
    """Waits until a file, or the list of names in a folder, is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _remove(folder: Path) -> None:
    # A kill while files are being deleted must not leave a torn folder under a name that is read.
    _delete(folder.rename(folder.with_name(f".{folder.name}.removed")))


def _delete(path: Path) -> None:
    # There may be a file at the path of a checkpoint.
    shutil.rmtree(path) if path.is_dir() else path.unlink()


def _content(folder: Path) -> dict[str, Any]:
    try:
        sealed = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        content, seal = sealed["content"], sealed["sha256"]
    except OSError as error:
        raise CheckpointError(f"{folder / MANIFEST} cannot be read ({error.strerror})") from None
    except (ValueError, KeyError, TypeError, RecursionError):
        raise CheckpointError(f"{folder / MANIFEST} is corrupt") from None
    if _seal(content) != seal:
        raise CheckpointError(f"{folder / MANIFEST} is corrupt: its digest differs")
    if content["format"] != FORMAT:
        raise CheckpointError(f"{folder} has format {content['format']}, this version reads {FORMAT}")
    return dict(content)


def _verify_file(path: Path, expected: Mapping[str, Any]) -> None:
    if not path.is_file():
        raise CheckpointError(f"{path} is missing")
    if path.stat().st_size != expected["bytes"]:
        raise CheckpointError(f"{path} has {path.stat().st_size} bytes instead of {expected['bytes']}")
    if digest(path) != expected["sha256"]:
        raise CheckpointError(f"{path} is corrupt: its digest differs")


def _seal(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
