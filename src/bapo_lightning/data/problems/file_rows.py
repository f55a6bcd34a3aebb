"""Reads rows of .jsonl, .json, .csv, .tsv and unlike .parquet files as the files have them. General readers
guess types: a text that looks like a date becomes a date, 0012 becomes 12, whole numbers lose digits, and a
column whose first cells are null cannot take text.
"""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Collection, Iterable, Iterator, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import datasets
import pyarrow  # type: ignore[import-untyped]
import pyarrow.parquet  # type: ignore[import-untyped]

from bapo_lightning.data.problems.formats import PACKED, format_of
from bapo_lightning.system.errors import DataError

_LONGEST_CELL = 2**31 - 1  # characters


class Records:
    """Rows of files with a part of the interface of `datasets.Dataset`; a row's missing cell is None."""

    def __init__(self, column_names: list[str], rows: list[dict[str, Any]]) -> None:
        self.column_names, self._rows = column_names, rows

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return ({name: row.get(name) for name in self.column_names} for row in self._rows)

    def select_columns(self, names: list[str]) -> Records:
        """Returns the rows with only these columns."""
        return Records(names, self._rows)

    def select(self, numbers: Iterable[int]) -> Records:
        """Returns some rows by their numbers."""
        return Records(self.column_names, [self._rows[number] for number in numbers])


def read_text_files(files: Iterable[tuple[str, str]], wanted: Collection[str]) -> Records:
    """Reads text files, given as local path and a name that shows the type, and keeps the `wanted` columns.
    Numbers in JSON that no float can hold stay texts. Raises DataError: a file is not UTF-8; ValueError, with
    the number of the line: its content is not of the type that its name shows.
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
    packing = PACKED.get(Path(name).suffix.lower())
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
    file, numbered, has_rows = Path(name).name, enumerate(_lines(path, name), 1), False
    for number, line in numbered:
        if not line.strip():
            continue
        try:
            value = _parsed(line.rstrip("\r\n"), file, number)
        except ValueError:
            if has_rows:  # else it may be one value in many lines
                raise
            value = _parsed(line + "".join(text for _, text in numbered), file, number)
        items = value if isinstance(value, list) and not has_rows else [value]
        for index, row in enumerate(items):
            if not isinstance(row, dict):
                place = f"item {index}" if items is value else f"line {number}"
                raise ValueError(f"{place} of {file} is not a JSON object with names")
            yield row
            has_rows = True


def _parsed(text: str, file: str, first: int) -> Any:
    """Returns the value of JSON that begins in line `first`; ValueError names the line of a mistake."""
    try:
        return json.loads(text, parse_float=_number, parse_int=_whole_number)
    except json.JSONDecodeError as error:
        line, what = first + error.lineno - 1, f"{error.msg}, at character {error.colno}"
        raise ValueError(f"line {line} of {file} is not JSON: {what}") from None
    except RecursionError:
        raise ValueError(f"line {first} of {file} is nested too deep") from None


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
        for row in filter(None, cells):
            if len(row) > len(header):
                raise ValueError(f"line {cells.line_num} has {len(row)} cells for {len(header)} columns")
            yield dict(zip(header, row, strict=False))
    except csv.Error as error:
        raise ValueError(f"line {cells.line_num}: {error}") from None


def read_unlike_files(files: Sequence[tuple[str, str]], wanted: Collection[str]) -> Records | None:
    """Reads parquet files, given as local path and name, if their `wanted` columns differ in type or are
    missing in some, or if a file has no rows; each cell is as its own file has it. Returns None if all files
    are alike, so that any reader will do. Raises DataError: a file has none of the columns of the others.
    """
    metadata = [pyarrow.parquet.read_metadata(path) for path, _ in files]
    schemas = [each.schema.to_arrow_schema() for each in metadata]
    types = [{name: schema.field(name).type for name in schema.names if name in wanted} for schema in schemas]
    if all(columns_of == types[0] for columns_of in types) and all(each.num_rows for each in metadata):
        return None
    rows = list[dict[str, Any]]()
    for (path, name), columns_of in zip(files, types, strict=True):
        if not columns_of:
            raise DataError(f"{name} has none of the columns {', '.join(sorted(set().union(*types)))}")
        with pyarrow.parquet.ParquetFile(path) as file:
            columns = datasets.Dataset(file.read(columns=list(columns_of)).select(list(columns_of)))[:]
        rows.extend(dict(zip(columns, cells, strict=True)) for cells in zip(*columns.values(), strict=True))
    return Records(list(dict.fromkeys(name for schema in schemas for name in schema.names)), rows)
