"""Reads a run folder back. Torn lines are skipped and counted; a folder that is no run is refused.

    config.yaml, manifest.json, metrics.jsonl -> RunRecord

A resume cuts `metrics.jsonl` back to its checkpoint. Where a file holds an update twice nevertheless, the
later one counts.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bapo_lightning.errors import DataError

TOKEN_FILE = "tokens.jsonl"
SCHEDULE_FILE = "schedule.jsonl"
Row = dict[str, Any]
Columns = dict[str, list[float]]
_GIVE = "give one like outputs/<experiment>/<run>, or a folder of runs such as `make sweep` makes"


@dataclass(frozen=True)
class RunRecord:
    """The files of a run, parsed."""

    path: Path
    config: dict[str, Any]
    manifest: dict[str, Any]
    rows: list[Row]  # one per update, ascending `step`
    unreadable_lines: int = 0  # lines of metrics.jsonl that are no row, for example torn by a kill
    rolled_back_rows: int = 0  # rows that a resume from an earlier checkpoint replaced
    ledger: list[Row] = field(default_factory=list)  # one per work item: epoch, problem, fate, reason

    @property
    def name(self) -> str:
        """Name of the folder; identifies the run within its experiment."""
        return self.path.name

    def series(self, name: str) -> tuple[list[int], list[float]]:
        """Steps and values of one metric, without updates where it is absent, null or not finite."""
        found = [(row["step"], value) for row in self.rows if (value := finite(row.get(name))) is not None]
        return [step for step, _ in found], [value for _, value in found]


def finite(value: object) -> float | None:
    """Converts a finite number or a truth value to a float, anything else to None."""
    if isinstance(value, int | float) and math.isfinite(value):
        return float(value)
    return None


def read_run(path: str | Path) -> RunRecord:
    """Reads one run folder; without `metrics.jsonl` no update was finished. Raises DataError where
    manifest.json or config.yaml is missing or corrupt.
    """
    folder = Path(path)
    if folder.is_file():
        raise DataError(f"{str(folder)!r} is a file, not a run folder; give the folder that it lies in")
    if not folder.is_dir():
        raise DataError(f"expected a run folder, got {str(folder)!r}, which does not exist; {_GIVE}")
    missing = [name for name in ("manifest.json", "config.yaml") if not (folder / name).is_file()]
    if missing:
        raise DataError(f"{str(folder)!r} is not a run folder: it has no {' and no '.join(missing)}; {_GIVE}")
    rows, unreadable, rolled_back = _rows(_text(folder / "metrics.jsonl"))
    config, manifest = read_config(folder), _read_manifest(folder / "manifest.json")
    ledger = _complete_lines(folder / "ledger.jsonl")
    return RunRecord(folder, config, manifest, rows, unreadable, rolled_back, ledger)


def read_manifest(folder: Path) -> dict[str, Any]:
    """Reads `manifest.json`, empty where a kill came before it. Raises DataError when it is corrupt."""
    path = folder / "manifest.json"
    return _read_manifest(path) if path.exists() and path.stat().st_size else {}


def read_config(folder: Path) -> dict[str, Any]:
    """Reads the resolved configuration of a run. Raises DataError when it is missing or corrupt."""
    path = folder / "config.yaml"
    if not path.is_file():
        raise DataError(f"{str(folder)!r} is not a run folder: it has no config.yaml; {_GIVE}")
    import yaml

    return _mapping(path, yaml.safe_load, "YAML", "a mapping", "restore the file that the run wrote")


def read_rows(folder: Path) -> list[Row]:
    """Reads the rows of `metrics.jsonl`, one per update; none where there is no such file."""
    return _rows(_text(folder / "metrics.jsonl"))[0]


def newest_rows(folder: Path, num_bytes: int = 1 << 16) -> list[Row]:
    """Reads the rows in the last `num_bytes` of `metrics.jsonl`, which is cheap however long the run is."""
    path = folder / "metrics.jsonl"
    if not path.is_file():
        return []
    with path.open("rb") as file:
        start = max(0, file.seek(0, os.SEEK_END) - num_bytes)
        file.seek(start)
        tail = file.read()
    whole = tail.partition(b"\n")[2] if start else tail
    return _rows(whole.decode("utf-8", errors="replace"))[0]


def read_rollouts(folder: Path) -> list[Row]:
    """Reads the rows of `rollouts.jsonl`; none where there is no such file."""
    return _complete_lines(folder / "rollouts.jsonl")


def read_tokens(folder: str | Path) -> Columns:
    """Reads all tokens that a run recorded (`callbacks.token_writer.every`), update after update: a list of
    equal length for each column, and the `step` of each token. Raises DataError without such tokens, or for
    a line that cannot be read.
    """
    path = Path(folder, TOKEN_FILE)
    if not path.is_file():
        raise DataError(f"{path} does not exist; train the run with callbacks.token_writer.every=64")
    columns: Columns = {"step": []}
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        try:
            row = json.loads(line)
            step = row.pop("step")
            (count,) = {len(values) for values in row.values()}
        except (ValueError, KeyError, AttributeError, TypeError, RecursionError):
            fault = f"{path}, line {number} is no record of tokens; cut the file off before it"
            raise DataError(fault) from None
        columns["step"] += [step] * count
        for name, values in row.items():
            columns.setdefault(name, []).extend(values)
    return columns


def _read_manifest(path: Path) -> dict[str, Any]:
    return _mapping(path, _loaded, "JSON", "a JSON object", "the run is unknown without it")


def _mapping(path: Path, parse: Callable[[bytes], Any], form: str, top: str, remedy: str) -> dict[str, Any]:
    text = path.read_bytes()
    try:
        content = parse(text)
    except Exception as error:  # each parser has types of its own
        raise DataError(f"{str(path)!r} is not valid {form} ({error}); {remedy}") from error
    if not isinstance(content, dict):
        raise DataError(f"{str(path)!r} must hold {top}, got a {type(content).__name__}; {remedy}")
    return content


def _rows(text: str) -> tuple[list[Row], int, int]:
    rows: list[Row] = []
    unreadable = rolled_back = 0
    for row in _json_lines(text):
        if not isinstance(row, dict) or not isinstance(row.get("step"), int):
            unreadable += 1
        elif rows and row["step"] == rows[-1]["step"]:
            rows[-1] = rows[-1] | row  # validation may add its own line to an update
        else:
            while rows and rows[-1]["step"] >= row["step"]:
                rows.pop()
                rolled_back += 1
            rows.append(row)
    return rows, unreadable, rolled_back


def _complete_lines(path: Path) -> list[Row]:
    # A resume cuts off the line that a kill tore.
    return [row for row in _json_lines(_text(path)) if isinstance(row, dict)]


def _text(path: Path) -> str:
    # A kill can cut a multi-byte character; only that line is lost then.
    return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""


def _json_lines(text: str) -> Iterator[Any]:
    for line in filter(str.strip, text.split("\n")):
        try:
            yield _loaded(line)
        except (ValueError, RecursionError):
            yield None


def _loaded(text: str | bytes) -> Any:
    """A JSON value without halves of a character, which no page could hold."""
    value = json.loads(text)
    if ("\\ud" if isinstance(text, str) else b"\\ud") not in text.lower():  # type: ignore[operator]
        return value
    return json.loads(json.dumps(value, ensure_ascii=False).encode("utf-8", "replace"))
