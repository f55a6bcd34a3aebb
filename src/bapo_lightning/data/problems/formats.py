"""Types of the files that hold tables, by their names."""

from __future__ import annotations

import glob
from pathlib import Path

from bapo_lightning.system.hub import is_hub_name

FORMATS = {
    ".jsonl": "json", ".ndjson": "json", ".json": "json", ".parquet": "parquet", ".csv": "csv", ".tsv": "csv",
}  # fmt: skip
PACKED = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd", ".lz4": "lz4"}


def format_of(path: str) -> str | None:
    """Returns json, csv or parquet by a file's name in any case; None if the name shows no type. A text
    file's type may be followed by .gz, .bz2, .zst or .lz4.
    """
    suffixes = [suffix.lower() for suffix in Path(path).suffixes[-2:]]
    is_packed = bool(suffixes) and suffixes[-1] in PACKED
    kind = FORMATS.get(next(iter(suffixes[::-1][is_packed:]), ""))
    return None if is_packed and kind == "parquet" else kind


def place_fault(path: str) -> str | None:
    """Returns why no table can be at `path`, as the end of a sentence; None if it is a folder, a file, a
    pattern that matches, an address or a name on the hub, which may hold one.
    """
    place = Path(path).expanduser()
    if "://" in path or place.is_dir():
        return None
    is_table = format_of(path) is not None
    if place.is_file():
        return None if is_table else f" is not a table of a known type; they are {', '.join(FORMATS)}"
    is_there = bool(glob.glob(str(place))) if is_table else is_hub_name(path)
    return None if is_there else ": there is no such file or folder"
