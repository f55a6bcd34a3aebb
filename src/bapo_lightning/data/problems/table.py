"""Problems of a table: a hub data set, a folder or files, read by a column mapping (group `problem_set`)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any, Literal

from bapo_lightning.data.problems.cells import MissingField, UnusableRow
from bapo_lightning.data.problems.columns import ColumnMapping
from bapo_lightning.data.problems.problem_set import ProblemSet
from bapo_lightning.data.problems.source import TableSource
from bapo_lightning.errors import DataError
from bapo_lightning.types import Problem
from bapo_lightning.values import Count


def problem_table(
    name: str,
    path: str,
    mapping: ColumnMapping,
    split: str = "train",
    config: str | None = None,
    revision: str | None = None,
    files: str | None = None,
    size: Count | None = None,
    any_size: bool = False,
    limit: Count | None = None,
    merge_repeats: bool = False,
    unusable: Literal["refuse", "leave_out"] = "refuse",
    licence: str | None = None,
) -> ProblemSet:
    """Reads one problem per row, in the order of the rows.

    Args:
        name: name of the set and first part of its problems' ids: "name/row number", or "name/own id" where
            the mapping has an `id`.
        path: hub name, folder, or .jsonl, .json, .parquet, .csv or .tsv file; * stands for several files.
        mapping: columns.
        split: split of the data set; any name for files.
        config: configuration of the data set, where it has several.
        revision: branch, tag or commit of the hub repository.
        files: only these files of the hub repository or folder.
        size: declared number of rows of the split; another number is refused. None: not declared.
        any_size: accept any number of rows.
        limit: read only so many rows, the first ones.
        merge_repeats: leave out rows whose problem and answer an earlier row had.
        unusable: `refuse` a table with a row that gives no problem (no gold answer, say), or `leave_out` the
            row.
        licence: licence as its publisher states it; shown to readers of the YAML file and in the docs.

    Raises:
        DataError: the data is not there, lacks a column, is not of its declared size, or a row cannot be
            used.
    """
    source = TableSource(path, split, config, revision, files)
    rows = _declared_rows(name, source, None if any_size else size)
    num_rows = len(rows)
    rows = rows.select_columns(_columns(name, source, mapping, rows.column_names))
    rows = rows if limit is None else rows.select(range(min(limit, num_rows)))
    problems, left_out = _read(name, source, mapping, rows, merge_repeats, unusable == "leave_out")
    return ProblemSet(problems, name, str(source), num_rows, left_out)


def _declared_rows(name: str, source: TableSource, size: int | None) -> Any:
    """Returns the whole table. Raises DataError when it cannot be had or has another size."""
    try:
        rows = source.rows()
    except DataError as error:
        raise DataError(f"problem set {name}: {error}") from None
    if size is not None and len(rows) != size:
        raise DataError(
            f"problem set {name}: {source} has {len(rows)} rows, and {size} are declared: another version, "
            "or not all of it; write any_size=true for the set to take it as it is, or correct size"
        )
    return rows


def _columns(name: str, source: TableSource, mapping: ColumnMapping, present: list[str]) -> list[str]:
    """Returns the columns that a mapping reads, so that no other is decoded."""
    needed = []
    for key, path in mapping.paths:
        parts = path.split(".")
        heads = [".".join(parts[:end]) for end in range(len(parts), 0, -1)]
        column = next((head for head in heads if head in present), None)
        if column is None:
            raise DataError(
                f"problem set {name}: mapping.{key}={path}, and {source} has no such column; its columns are "
                f"{', '.join(present)}"
            )
        needed.append(column)
    return sorted(set(needed))


def _read(
    name: str, source: TableSource, mapping: ColumnMapping, rows: Any, merge_repeats: bool, leave_out: bool
) -> tuple[list[Problem], Counter[str]]:
    """Returns the problems of all rows, and the number of rows left out by reason."""
    problems: list[Problem] = []
    left_out: Counter[str] = Counter()
    seen: set[tuple[str, str]] = set()
    for number, row in enumerate(_in_batches(rows)):
        try:
            problem = mapping.read(row, number, name)
        except MissingField as error:
            raise DataError(
                f"problem set {name}: row {number} of {source} lacks one of the mapping's fields "
                f"({', '.join(path for _, path in mapping.paths)}); where the path breaks off there are "
                f"{', '.join(error.names) or 'no fields'}"
            ) from None
        except UnusableRow as reason:
            if not leave_out:
                raise DataError(
                    f"problem set {name}: row {number} of {source} cannot be used: {reason}; correct the "
                    "mapping or the row, or write unusable=leave_out to go without such rows"
                ) from None
            left_out[str(reason)] += 1
            continue
        if merge_repeats:
            if (problem.prompt, problem.answer) in seen:
                left_out["repeated row"] += 1
                continue
            seen.add((problem.prompt, problem.answer))
        problems.append(problem)
    _check(name, source, problems, left_out)
    return problems, left_out


def _in_batches(rows: Any) -> Iterator[dict[str, Any]]:
    """Yields the rows one by one, decoded many at a time: `datasets` takes several times longer for single
    ones.
    """
    for batch in rows.iter(batch_size=1000):
        for values in zip(*batch.values(), strict=True):
            yield dict(zip(batch, values, strict=True))


def _check(name: str, source: TableSource, problems: list[Problem], left_out: Counter[str]) -> None:
    """Raises DataError when there are no problems, or two share an id."""
    if not problems:
        reasons = "; ".join(f"{count} rows: {reason}" for reason, count in left_out.items())
        raise DataError(
            f"problem set {name}: {source} gives no problem ({reasons or 'it has no rows'}); check its "
            "mapping"
        )
    repeated = [own_id for own_id, count in Counter(problem.id for problem in problems).items() if count > 1]
    if repeated:
        raise DataError(
            f"problem set {name}: {len(repeated)} ids of {source} stand for several rows, among them "
            f"{repeated[0]}; write mapping.id=null to number the rows instead"
        )
