"""Reads back the tokens that a run recorded (`callbacks.token_writer.every`)."""

from __future__ import annotations

import json
from pathlib import Path

from bapo_lightning.errors import DataError

TOKEN_FILE = "tokens.jsonl"
Columns = dict[str, list[float]]


def read_tokens(folder: str | Path) -> Columns:
    """Reads all recorded tokens of a run, update after update: a list of equal length for each column, and
    the `step` of each token.

    Raises:
        DataError: the run recorded none, or a line cannot be read.
    """
    path = Path(folder, TOKEN_FILE)
    if not path.is_file():
        raise DataError(f"{path} does not exist; train the run with callbacks.token_writer.every=64")
    columns: Columns = {"step": []}
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        try:
            row = json.loads(line)
            step = row.pop("step")
            lengths = {len(values) for values in row.values()}
            (count,) = lengths
        except (ValueError, KeyError, AttributeError, TypeError):
            raise DataError(
                f"{path}, line {number} is no record of tokens; cut the file off before it"
            ) from None
        columns["step"] += [step] * count
        for name, values in row.items():
            columns.setdefault(name, []).extend(values)
    return columns
