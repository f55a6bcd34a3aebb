"""Reads parquet files that disagree about the types of columns, or have no rows. General readers cast every
file to the types of the first: a column that is null there cannot take text, and 0012 becomes 12.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import datasets
import pyarrow.parquet  # type: ignore[import-untyped]

from bapo_lightning.data.problems.text_files import Records
from bapo_lightning.system.errors import DataError


def read_unlike_files(files: Sequence[tuple[str, str]], wanted: Collection[str]) -> Records | None:
    """Reads parquet files, given as local path and name, if their `wanted` columns differ in type or are
    missing in some, or if a file has no rows; each cell is as its own file has it. Returns None if all files
    are alike, so that any reader will do. Raises DataError: a file has none of the columns of the others.
    """
    metadata = [pyarrow.parquet.read_metadata(path) for path, _ in files]
    schemas = [each.schema.to_arrow_schema() for each in metadata]
    types = [{name: schema.field(name).type for name in schema.names if name in wanted} for schema in schemas]
    if all(own == types[0] for own in types) and all(each.num_rows for each in metadata):
        return None
    rows = list[dict[str, Any]]()
    for (path, name), own in zip(files, types, strict=True):
        if not own:
            raise DataError(f"{name} has none of the columns {', '.join(sorted(set().union(*types)))}")
        with pyarrow.parquet.ParquetFile(path) as file:
            columns = datasets.Dataset(file.read(columns=list(own)).select(list(own)))[:]
        rows.extend(dict(zip(columns, cells, strict=True)) for cells in zip(*columns.values(), strict=True))
    return Records(list(dict.fromkeys(name for schema in schemas for name in schema.names)), rows)
