"""Rows of .jsonl, .json, .csv and .tsv files as the files have them. General readers guess types instead: a
text that looks like a date becomes one, 0012 is 12, whole numbers lose digits, and a column whose first
cells are null takes no text.
"""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Collection, Iterable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow  # type: ignore[import-untyped]

from bapo_lightning.errors import DataError

FORMATS = {
    ".jsonl": "json", ".ndjson": "json", ".json": "json", ".parquet": "parquet", ".csv": "csv", ".tsv": "csv",
}  # fmt: skip
_PACKED = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd", ".lz4": "lz4"}
_LONGEST_CELL = 2**31 - 1  # characters


class Records:
    """Rows of text files, a part of the interface of `datasets.Dataset`; a cell that a row lacks is None."""

    def __init__(self, column_names: list[str], rows: list[dict[str, Any]]) -> None:
        self.column_names, self._rows = column_names, rows

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return ({name: row.get(name) for name in self.column_names} for row in self._rows)

    def select_columns(self, names: list[str]) -> Records:
        """Returns the rows with these columns alone."""
        return Records(names, self._rows)

    def select(self, numbers: Iterable[int]) -> Records:
        """Returns some rows by their numbers."""
        return Records(self.column_names, [self._rows[number] for number in numbers])


def format_of(path: str) -> str | None:
    """Returns json, csv or parquet by a file's name, of which .gz, .bz2, .zst, .lz4 may follow the type of a
    text file and case does not matter; None where it says nothing.
    """
    suffixes = [suffix.lower() for suffix in Path(path).suffixes[-2:]]
    is_packed = bool(suffixes) and suffixes[-1] in _PACKED
    found = FORMATS.get(next(iter(suffixes[::-1][is_packed:]), ""))
    return None if is_packed and found == "parquet" else found


def read_text_files(files: Iterable[tuple[str, str]], wanted: Collection[str]) -> Records:
    """Reads text files, each with its path here and the name that tells its type, and keeps the `wanted`
    columns. Numbers in JSON that no float holds stay texts. Raises DataError: a file is not UTF-8;
    ValueError: it is not what its name says, with the number of the row.
    """
    names, kept = dict[str, None](), list[dict[str, Any]]()
    for path, name in files:
        rows = _json_rows(path, name) if format_of(name) == "json" else _csv_rows(path, name)
        for row in rows:
            names.update(dict.fromkeys(row))
            kept.append({column: row[column] for column in row if column in wanted})
    if not kept:
        raise ValueError("it has no rows")
    return Records(list(names), kept)


def _lines(path: str, name: str) -> Iterator[str]:
    packing = _PACKED.get(Path(name).suffix.lower())
    with io.BufferedReader(pyarrow.input_stream(path, compression=packing), 2**20) as file:
        place = 0
        for raw in file:
            try:
                text = raw.decode("utf-8")
            except UnicodeDecodeError as error:
                where = place + error.start + 1
                raise DataError(f"{name} is not UTF-8 (byte {where}); save it as UTF-8") from None
            yield text if place else text.removeprefix("\ufeff")
            place += len(raw)


def _json_rows(path: str, name: str) -> Iterator[dict[str, Any]]:
    lines = (line for line in _lines(path, name) if line.strip())
    number = 0
    for line in lines:
        try:
            value = _parsed(line)
        except ValueError as error:
            if number:  # else it may be one value in many lines
                raise ValueError(f"JSON parse error: {error} in row {number}") from None
            value = _whole(line + "".join(lines))
        for row in value if isinstance(value, list) and not number else [value]:
            if not isinstance(row, dict):
                raise ValueError(f"row {number} is no JSON object with names")
            yield row
            number += 1


def _whole(text: str) -> Any:
    try:
        return _parsed(text)
    except ValueError as error:
        raise ValueError(f"JSON parse error: {error} in row 0") from None


def _parsed(text: str) -> Any:
    try:
        return json.loads(text, parse_float=_number, parse_int=_whole_number)
    except RecursionError:
        raise ValueError("nested too deep") from None


def _number(text: str) -> float | str:
    value = float(text)
    return value if math.isfinite(value) and Decimal(repr(value)) == Decimal(text) else text


def _whole_number(text: str) -> int | str:
    return int(text) if len(text) < 1000 else text  # Python refuses to print more than 4300 digits


def _csv_rows(path: str, name: str) -> Iterator[dict[str, Any]]:
    csv.field_size_limit(_LONGEST_CELL)
    delimiter = "\t" if ".tsv" in (suffix.lower() for suffix in Path(name).suffixes[-2:]) else ","
    cells = csv.reader(_lines(path, name), delimiter=delimiter, strict=True)
    try:
        header = next(cells, [])
        if len(set(header)) < len(header):
            raise ValueError("two columns have the same name")
        for number, row in enumerate(row for row in cells if row):
            if len(row) > len(header):
                raise ValueError(f"row {number} has {len(row)} cells, and there are {len(header)} columns")
            yield dict(zip(header, row, strict=False))
    except csv.Error as error:
        raise ValueError(f"line {cells.line_num}: {error}") from None
