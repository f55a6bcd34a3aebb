"""Reads a run folder back, judged by `shapes`. Lines that are no rows are skipped and counted; a file that is
one value, and is not what it should be, is refused, and so is a folder that is no run.

    config.yaml, manifest.json, metrics.jsonl -> RunRecord

A resume cuts `metrics.jsonl` back to its checkpoint. Where a file holds an update twice nevertheless, the
later one counts.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from bapo_lightning.errors import DataError
from bapo_lightning.run_folder.shapes import (
    LARGEST,
    Config,
    Count,
    LedgerRow,
    Manifest,
    MetricsRow,
    Number,
    RolloutRow,
    shaped,
)

TOKEN_FILE = "tokens.jsonl"
SCHEDULE_FILE = "schedule.jsonl"
Row = dict[str, Any]
Columns = dict[str, list[float]]
_UNKNOWN = "the run is unknown without it"
_GIVE = "give one like outputs/<experiment>/<run>, or a folder of runs such as `make sweep` makes"


@dataclass(frozen=True)
class RunRecord:
    """The files of a run, parsed."""

    path: Path
    config: dict[str, Any]
    manifest: dict[str, Any]
    rows: list[Row]  # one per update, ascending `step`
    unreadable_lines: int = 0  # of metrics.jsonl and ledger.jsonl: no rows, for example torn by a kill
    rolled_back_rows: int = 0  # rows that a resume from an earlier checkpoint replaced
    ledger: list[Row] = field(default_factory=list)  # one per work item: epoch, problem, fate, reason

    @property
    def name(self) -> str:
        """Name of the folder; identifies the run within its experiment."""
        return self.path.name

    @property
    def problem(self) -> str | None:
        """Why the run enters no mean; None when it does."""
        absent = [key for key in ("algorithm", "staleness", "seed") if self.manifest.get(key) is None]
        if absent:
            return f"its manifest does not say its {' and '.join(absent)}"
        status = self.manifest.get("status")
        if status != "finished":
            return f"its status is {status!r} after {len(self.rows)} updates, not 'finished'"
        return None if self.series("train/reward")[1] else "it recorded no reward"

    def series(self, name: str) -> tuple[list[int], list[float]]:
        """Steps and values of one metric, without updates where it is absent, null or not finite."""
        found = [(row["step"], value) for row in self.rows if (value := finite(row.get(name))) is not None]
        return [step for step, _ in found], [value for _, value in found]


def finite(value: object) -> float | None:
    """Converts a number that can be reckoned with, or a truth value, to a float, anything else to None."""
    return float(value) if isinstance(value, int | float) and abs(value) <= LARGEST else None


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
    config, manifest = read_config(folder), read_mapping(folder / "manifest.json", Manifest, _UNKNOWN)
    ledger, faults = _lines(_text(folder / "ledger.jsonl"), LedgerRow)
    return RunRecord(folder, config, manifest, rows, unreadable + len(faults), rolled_back, ledger)


def read_manifest(folder: Path) -> dict[str, Any]:
    """Reads `manifest.json`, empty where a kill came before it. Raises DataError when it is corrupt."""
    path = folder / "manifest.json"
    return read_mapping(path, Manifest, _UNKNOWN) if path.exists() and path.stat().st_size else {}


def read_config(folder: Path) -> dict[str, Any]:
    """Reads the resolved configuration of a run. Raises DataError when it is missing or corrupt."""
    path = folder / "config.yaml"
    if not path.is_file():
        raise DataError(f"{str(folder)!r} is not a run folder: it has no config.yaml; {_GIVE}")
    return read_mapping(path, Config, "restore the file that the run wrote")


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
    """Reads the rows of `rollouts.jsonl`, none without such a file; says once which lines are none."""
    path = folder / "rollouts.jsonl"
    # A resume cuts off the line that a kill tore.
    rows, faults = _lines(_text(path).rpartition("\n")[0], RolloutRow)
    if faults:
        more = f", and {len(faults) - 1} more" if len(faults) > 1 else ""
        _warn(f"{path}, line {faults[0][0]} is no row ({faults[0][1]}){more}; left out")
    return rows


def read_lines(path: Path, shape: type, remedy: str, begin: int = 0) -> list[Row]:
    """Reads rows that all count, from the byte `begin` on, without a last line that has no end. Raises
    DataError with the first line that is no row.
    """
    content = path.read_bytes()[begin:] if path.exists() else b""
    whole = content[: content.rfind(b"\n") + 1].decode("utf-8", errors="replace")
    rows, faults = _lines(whole, shape)
    for number, reason in faults:
        line = number + (path.read_bytes()[:begin].count(b"\n") if begin else 0)
        raise DataError(f"line {line} of {path} is corrupt ({reason}); {remedy}")
    return rows


def read_tokens(folder: str | Path) -> Columns:
    """Reads all tokens that a run recorded (`callbacks.token_writer.every`), update after update: a list of
    equal length for each column, and the `step` of each token. Raises DataError without such tokens, or for
    a line that cannot be read.
    """
    path = Path(folder, TOKEN_FILE)
    if not path.is_file():
        raise DataError(f"{path} does not exist; train the run with callbacks.token_writer.every=64")
    columns: Columns = {"step": []}
    for number, line in enumerate(_text(path).removesuffix("\n").split("\n"), 1):
        try:
            row = json.loads(line)
            step = shaped(Count, row.pop("step"))
            row = shaped(dict[str, list[Number]], row)
            (count,) = {len(values) for values in row.values()}
        except (ValueError, KeyError, AttributeError, TypeError, RecursionError):
            fault = f"{path}, line {number} is no record of tokens; cut the file off before it"
            raise DataError(fault) from None
        columns["step"] += [step] * count
        for name, values in row.items():
            columns.setdefault(name, []).extend(values)
    return columns


def read_mapping(path: Path, shape: type, remedy: str) -> dict[str, Any]:
    """Reads a file that holds one JSON object of this shape, or YAML by its name. Raises DataError when it is
    corrupt.
    """
    is_yaml = path.suffix == ".yaml"
    form, top = ("YAML", "a mapping") if is_yaml else ("JSON", "a JSON object")
    try:
        content = _yaml(path.read_bytes()) if is_yaml else json.loads(path.read_bytes())
        content = _whole(content, json.dumps(content, ensure_ascii=False, allow_nan=is_yaml))
    except Exception as error:  # each parser has types of its own
        raise DataError(f"{str(path)!r} is not valid {form} ({error}); {remedy}") from error
    if not isinstance(content, dict):
        raise DataError(f"{str(path)!r} must hold {top}, got a {type(content).__name__}; {remedy}")
    try:
        shaped(shape, content)
    except ValueError as error:
        raise DataError(f"{str(path)!r} is damaged ({error}); {remedy}") from None
    return content


def _yaml(text: bytes) -> Any:
    import yaml

    return yaml.safe_load(text)


def _rows(text: str) -> tuple[list[Row], int, int]:
    rows: list[Row] = []
    rolled_back = 0
    lines, faults = _lines(text, MetricsRow)
    for line in lines:
        row = {name: value if isinstance(value, int | float) else None for name, value in line.items()}
        if rows and row["step"] == rows[-1]["step"]:
            rows[-1] = rows[-1] | row  # validation may add its own line to an update
        else:
            while rows and rows[-1]["step"] >= row["step"]:
                rows.pop()
                rolled_back += 1
            rows.append(row)
    return rows, len(faults), rolled_back


def _lines(text: str, shape: type) -> tuple[list[Row], list[tuple[int, str]]]:
    """Rows, and numbers of lines that are none, each with the reason."""
    rows: list[Row] = []
    faults: list[tuple[int, str]] = []
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            rows.append(shaped(shape, _loaded(line)))
        except (ValueError, RecursionError) as error:
            faults.append((number, str(error)))
    return rows, faults


@cache
def _warn(text: str) -> None:
    print(f"warning: {text}", file=sys.stderr, flush=True)


def _text(path: Path) -> str:
    # A kill can cut a multi-byte character; only that line is lost then.
    return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""


def _loaded(text: str) -> Any:
    value = json.loads(text)
    return _whole(value, json.dumps(value, ensure_ascii=False)) if "\\ud" in text.lower() else value


def _whole(value: Any, text: str) -> Any:
    """The value whose JSON text this is, without halves of a character, which no page could hold."""
    try:
        text.encode("utf-8")
        return value
    except UnicodeEncodeError:
        return json.loads(text.encode("utf-8", "replace"))
