"""Reads a run folder back, judged by `shapes`. Lines that are not rows are skipped and counted. A file that
must hold one value and does not is refused, and so is a folder that is not a run.

    config.yaml, manifest.json, metrics.jsonl -> RunRecord

A resume truncates `metrics.jsonl` to its checkpoint. If a file holds an update twice nevertheless, the later
one counts.
"""

from __future__ import annotations

import json
import os
import sys
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from bapo_lightning.system.errors import DataError
from bapo_lightning.system.printable import say, whole_characters
from bapo_lightning.system.run_folder.shapes import (
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
from bapo_lightning.system.run_folder.text_file import write_json

TOKEN_FILE = "tokens.jsonl"
SCHEDULE_FILE = "schedule.jsonl"
STOPPED_EARLY = "stopped"  # status of a run that a callback ended before its last update
Row = dict[str, Any]
Columns = dict[str, list[float]]
Curve = tuple[list[int], list[float]]  # updates, values
_PROOF = 64  # bytes before the first new one that identify a journal
_UNKNOWN = "the run is unknown without it"
_GIVE = "give one like outputs/<experiment>/<run>, or a folder of runs such as `make sweep` makes"


@dataclass(frozen=True, repr=False)
class RunRecord:
    """The files of a run, parsed."""

    path: Path
    config: dict[str, Any]
    manifest: dict[str, Any]
    rows: list[Row]  # one per update, ascending `step`
    unreadable_lines: int = 0  # of metrics.jsonl and ledger.jsonl: not rows, for example torn by a kill
    rolled_back_rows: int = 0  # rows that a resume from an earlier checkpoint replaced

    def __repr__(self) -> str:
        """Returns one line, for the last line of a notebook's cell."""
        return f"RunRecord({str(self.path)!r}, {self.manifest.get('status')}, {len(self.rows)} updates)"

    ledger: list[Row] = field(default_factory=list)  # one per work item: epoch, problem, fate, reason

    @property
    def name(self) -> str:
        """Name of the folder; identifies the run within its experiment."""
        return self.path.name

    @property
    def problem(self) -> str | None:
        """Why the run enters no mean; None if it does."""
        absent = [key for key in ("algorithm", "staleness", "seed") if self.manifest.get(key) is None]
        if absent:
            return f"its manifest does not say its {' and '.join(absent)}"
        status = self.manifest.get("status")
        if status != "finished":
            total = f" of {self.num_planned}" if self.num_planned else ""
            after = f"after {len(self.rows)}{total} updates"
            if status == STOPPED_EARLY:
                return f"it was {self.ending} {after}"
            return f"its status is {status!r} {after}, not 'finished'"
        return None if self.series("train/reward")[1] else "it recorded no reward"

    @property
    def ending(self) -> str:
        """Status of the run, with the name of the callback if one stopped it."""
        status = str(self.manifest.get("status") or "status unknown")
        by = f" by {self.manifest.get('stopped_by', 'a callback')}"
        return status + by if status == STOPPED_EARLY else status

    @property
    def num_planned(self) -> int | None:
        """Number of updates that the run was to have; None if its files do not say it."""
        batches = (self.config.get("scale") or {}).get("num_rollout_batches")
        staleness = self.manifest.get("staleness")
        return batches * staleness if batches and staleness else None

    @cached_property
    def columns(self) -> dict[str, Curve]:
        """The series of every metric in the rows, made in one pass."""
        columns: dict[str, Curve] = {}
        for row in self.rows:
            _add_to_columns(columns, row)
        return columns

    def series(self, name: str) -> Curve:
        """Steps and values of one metric, without updates in which it is absent, null or not finite."""
        return self.columns.get(name, ([], []))


def finite(value: object) -> float | None:
    """Converts a number that can be calculated with, or a truth value, to a float, anything else to None."""
    return float(value) if isinstance(value, int | float) and abs(value) <= LARGEST else None


def read_run(path: str | Path) -> RunRecord:
    """Reads a run folder, maybe without updates. DataError: a bad manifest.json or config.yaml."""
    folder = Path(path)
    _refuse_no_run(folder)
    rows, unreadable, rolled_back = _rows(_text(folder / "metrics.jsonl"))
    config, manifest = read_config(folder), read_mapping(folder / "manifest.json", Manifest, _UNKNOWN)
    ledger, faults = _lines(_text(folder / "ledger.jsonl"), LedgerRow)
    return RunRecord(folder, config, manifest, rows, unreadable + len(faults), rolled_back, ledger)


def _refuse_no_run(folder: Path) -> None:
    if folder.is_file():
        raise DataError(f"{str(folder)!r} is a file, not a run folder; give the folder that it lies in")
    if not folder.is_dir():
        raise DataError(f"expected a run folder, got {str(folder)!r}, which does not exist; {_GIVE}")
    missing = [name for name in ("manifest.json", "config.yaml") if not (folder / name).is_file()]
    if missing:
        raise DataError(f"{str(folder)!r} is not a run folder: it has no {' and no '.join(missing)}; {_GIVE}")


def read_manifest(folder: Path) -> dict[str, Any]:
    """Reads `manifest.json`; empty if a kill came before it. Raises DataError if it is corrupt."""
    path = folder / "manifest.json"
    return read_mapping(path, Manifest, _UNKNOWN) if path.exists() and path.stat().st_size else {}


def correct_status(folder: Path, status: str) -> None:
    """Writes how a session ended into a manifest that still says "running". The caller holds the run's lock,
    so nothing runs there any more. Errors from a full disk or a corrupt manifest are left to later steps.
    """
    with suppress(OSError, DataError):
        manifest = read_manifest(folder)
        if manifest.get("status") == "running":
            write_json(folder / "manifest.json", {**manifest, "status": status})


def read_config(folder: Path) -> dict[str, Any]:
    """Reads the resolved configuration of a run. Raises DataError if it is missing or corrupt."""
    path = folder / "config.yaml"
    if not path.is_file():
        raise DataError(f"{str(folder)!r} is not a run folder: it has no config.yaml; {_GIVE}")
    return read_mapping(path, Config, "restore the file that the run wrote")


def read_rows(folder: Path) -> list[Row]:
    """Reads the rows of `metrics.jsonl`, one per update; none if there is no such file."""
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


class RowReader:
    """Reads a growing journal repeatedly, each line once, when it is complete."""

    def __init__(self, path: Path, shape: type) -> None:
        self._path, self._shape = path, shape
        self._size = self._lines = 0  # bytes and lines read so far
        self._end = b""  # the last of these bytes

    def read_on(self) -> tuple[list[Row], bool]:
        """Returns the rows that were added since the previous call, and whether they are all rows of the file
        again because a resume has cut it. Prints the first line that is not a row.
        """
        if not self._path.is_file():
            return [], False
        with self._path.open("rb") as file:
            file.seek(self._size - len(self._end))
            is_cut = file.read(len(self._end)) != self._end
            if is_cut:
                file.seek(0)
                self._size, self._lines, self._end = 0, 0, b""
            content = file.read()
        whole = content[: content.rfind(b"\n") + 1]
        rows, faults = _lines(whole.decode("utf-8", errors="replace"), self._shape)
        if faults:
            more = f", and {len(faults) - 1} more" if len(faults) > 1 else ""
            line = self._lines + faults[0][0]
            _warn(f"{self._path}, line {line} is not a row ({faults[0][1]}){more}; left out")
        self._size, self._lines = self._size + len(whole), self._lines + whole.count(b"\n")
        self._end = (self._end + whole)[-_PROOF:]
        return rows, is_cut


class RunReader:
    """Reads a run folder repeatedly, each line of its journals once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._metrics = RowReader(folder / "metrics.jsonl", MetricsRow)
        self._texts = RowReader(folder / "rollouts.jsonl", RolloutRow)
        self._rows: list[Row] = []
        self._columns: dict[str, Curve] = {}
        self._rollouts: list[Row] = []

    def read_on(self) -> tuple[RunRecord, list[Row]]:
        """Returns the run without its ledger, and its recorded texts. Raises DataError as `read_run`."""
        _refuse_no_run(self._folder)
        added, is_cut = self._metrics.read_on()
        if is_cut:
            self._rows, self._columns = [], {}
        for row in added:
            if _merge(self._rows, row):  # the updates before a resume
                self._columns = RunRecord(self._folder, {}, {}, self._rows).columns
            else:
                _add_to_columns(self._columns, self._rows[-1])
        texts, is_cut = self._texts.read_on()
        self._rollouts = texts if is_cut else self._rollouts + texts
        manifest = read_mapping(self._folder / "manifest.json", Manifest, _UNKNOWN)
        record = RunRecord(self._folder, read_config(self._folder), manifest, self._rows)
        vars(record)["columns"] = self._columns  # as if they had been accessed
        return record, self._rollouts


def read_rollouts(folder: Path) -> list[Row]:
    """Reads the rows of `rollouts.jsonl`, none without such a file; reports once which lines are not rows."""
    return RowReader(folder / "rollouts.jsonl", RolloutRow).read_on()[0]


def read_lines(path: Path, shape: type, remedy: str, begin: int = 0) -> list[Row]:
    """Reads whole lines from the byte `begin`. Raises DataError with the first that is not a row."""
    content = path.read_bytes()[begin:] if path.exists() else b""
    whole = content[: content.rfind(b"\n") + 1].decode("utf-8", errors="replace")
    rows, faults = _lines(whole, shape)
    for number, reason in faults:
        line = number + (path.read_bytes()[:begin].count(b"\n") if begin else 0)
        raise DataError(f"line {line} of {path} is corrupt ({reason}); {remedy}")
    return rows


def read_tokens(folder: str | Path) -> Columns:
    """Reads all tokens that a run recorded (`callbacks.token_writer.every`), update by update: a list of
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
            fault = f"{path}, line {number} is not a record of tokens; cut the file off before it"
            raise DataError(fault) from None
        columns["step"] += [step] * count
        for name, values in row.items():
            columns.setdefault(name, []).extend(values)
    return columns


def read_mapping(path: Path, shape: type, remedy: str) -> dict[str, Any]:
    """Reads a file with one JSON object (or YAML, by its name) of this shape. Raises DataError."""
    is_yaml = path.suffix == ".yaml"
    form, top = ("YAML", "a mapping") if is_yaml else ("JSON", "a JSON object")
    try:
        content = _yaml(path.read_bytes()) if is_yaml else json.loads(path.read_bytes())
        content = _whole(content, json.dumps(content, ensure_ascii=False, allow_nan=is_yaml))
    except Exception as error:  # each parser has its own types
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

    class Loader(yaml.SafeLoader):
        """Refuses aliases, with which a few lines can expand beyond a machine's memory."""

        def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
            if self.check_event(yaml.AliasEvent):
                raise ValueError("it has an alias, *NAME; a run writes every value in full")
            return super().compose_node(parent, index)

    return yaml.load(text, Loader)


def _rows(text: str) -> tuple[list[Row], int, int]:
    rows: list[Row] = []
    lines, faults = _lines(text, MetricsRow)
    rolled_back = sum(_merge(rows, line) for line in lines)
    return rows, len(faults), rolled_back


def _merge(rows: list[Row], line: Row) -> int:
    """Adds a line of metrics.jsonl to `rows`; returns the number of rows that it replaces after a resume."""
    row = {
        sys.intern(name): value if isinstance(value, int | float) else None for name, value in line.items()
    }
    if rows and row["step"] == rows[-1]["step"]:
        rows[-1] = rows[-1] | row  # validation may add its own line to an update
        return 0
    rolled_back = 0
    while rows and rows[-1]["step"] >= row["step"]:
        rows.pop()
        rolled_back += 1
    rows.append(row)
    return rolled_back


def _add_to_columns(columns: dict[str, Curve], row: Row) -> None:
    """Adds a row, which is later than all others or replaces the last one, to the series of its metrics."""
    step = row["step"]
    for name, value in row.items():
        if name == "step":
            continue
        if name not in columns:
            columns[name] = ([], [])
        steps, values = columns[name]
        if steps and steps[-1] == step:
            steps.pop()
            values.pop()
        if (number := finite(value)) is not None:
            steps.append(step)
            values.append(number)


def _lines(text: str, shape: type) -> tuple[list[Row], list[tuple[int, str]]]:
    """Rows, and numbers of the lines that are not rows, each with the reason."""
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
    say(f"warning: {text}", sys.stderr)


def _text(path: Path) -> str:
    # A kill can cut a multi-byte character; then only that line is lost.
    try:
        return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""
    except OSError as error:  # such as a link into /proc
        raise DataError(f"{path} cannot be read ({error.strerror})") from None


def _loaded(text: str) -> Any:
    value = json.loads(text)
    return _whole(value, json.dumps(value, ensure_ascii=False)) if "\\ud" in text.lower() else value


def _whole(value: Any, text: str) -> Any:
    """The value of this JSON text, without halves of a character, which no page could hold."""
    try:
        text.encode("utf-8")
        return value
    except UnicodeEncodeError:
        return json.loads(whole_characters(text))
