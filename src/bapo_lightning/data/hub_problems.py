"""Problems of a table with a question and an answer column: a Hugging Face data set or a local file."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import datasets
from datasets.exceptions import DatasetsError
from huggingface_hub import snapshot_download

from bapo_lightning.errors import DataError
from bapo_lightning.types import Problem

FORMATS = {".jsonl": "json", ".json": "json", ".parquet": "parquet"}
_THOUSANDS_COMMA = re.compile(r"(?<=[0-9]),(?=[0-9]{3}(?![0-9]))")


def hub_problems(
    path: str,
    split: str,
    problem_column: str,
    answer_column: str,
    name: str | None = None,
    answer_marker: str | None = None,
    limit: int | None = None,
) -> list[Problem]:
    """One problem per row, in the order of the rows.

    Args:
        path: hub name ("openai/gsm8k"), folder with a data set, or a .jsonl, .json or .parquet file.
        split: of the data set, e.g. "train"; any name for a file.
        problem_column: text that becomes the prompt.
        answer_column: text that ends in the gold answer.
        name: configuration of the data set, where it has several.
        answer_marker: the gold answer is what stands behind the last one in the answer column; None: all of the column.
        limit: read only that many rows, the first ones.

    Returns:
        Problems with `id` "path/split/row" and gold answers without the commas between thousands.

    Raises:
        DataError: the data is not there, lacks the split or a column, or a row has no gold answer.
    """
    rows = _load(path, name, split)
    absent = {problem_column, answer_column} - set(rows.column_names)
    if absent:
        raise DataError(f"{path} has no column {', '.join(sorted(absent))}; its columns are {', '.join(rows.column_names)}")
    if limit is not None:
        rows = rows.select(range(min(limit, len(rows))))
    return [
        Problem(
            id=f"{path}/{split}/{index}",
            prompt=str(row[problem_column]),
            answer=_gold(str(row[answer_column]), answer_marker, f"row {index} of {path}, split {split},"),
            source=path,
        )
        for index, row in enumerate(rows)
    ]


def _load(path: str, name: str | None, split: str) -> Any:
    """The rows of a split. Raises DataError when they cannot be had."""
    file_format = FORMATS.get(Path(path).suffix)
    try:
        if file_format is not None:
            return datasets.load_dataset(file_format, data_files={split: path}, split=split)
        try:
            return datasets.load_dataset(path, name, split=split)
        except ConnectionError:
            # Offline, datasets 5.2 finds only what it has prepared itself, not what `hf download` has fetched.
            return datasets.load_dataset(snapshot_download(path, repo_type="dataset", local_files_only=True), name, split=split)
    except (DatasetsError, OSError, ValueError) as error:
        remedy = "check the file" if file_format else f"check its name and split, or fetch it first: hf download --repo-type dataset {path}"
        raise DataError(
            f"data path={path} name={name} split={split} could not be loaded ({str(error).splitlines()[0]}); {remedy}"
        ) from None


def _gold(text: str, marker: str | None, where: str) -> str:
    if marker is not None and marker not in text:
        raise DataError(f"{where} has no answer_marker {marker!r} in its answer; correct the row, or write another answer_marker")
    answer = text if marker is None else text.rpartition(marker)[2]
    gold = _THOUSANDS_COMMA.sub("", answer.strip())
    if not gold:
        raise DataError(f"{where} has an empty gold answer; correct or remove the row")
    return gold
