"""Logs of other trainers as run folders: TRL's state, verl's file logger, TensorBoard, exports of W&B.

    NAME:SEED=PATH, NAME:SEED:STALENESS=PATH -> ForeignRun -> config.yaml, manifest.json, metrics.jsonl

A log does not say which algorithm and seed it belongs to, so the caller does. Metrics with the same
meaning as a metric of this package get its name.
"""

from __future__ import annotations

import csv
import json
import math
import os
import re
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple, NotRequired

from typing_extensions import TypedDict

from bapo_lightning.report.metrics import is_listed
from bapo_lightning.system.errors import DataError
from bapo_lightning.system.run_folder.shapes import Count, shaped
from bapo_lightning.system.run_folder.text_file import write_json, write_text

_SPEC = re.compile(r"([A-Za-z0-9][\w.+-]*):(\d{1,9})(?::([1-9]\d{0,8}))?=(.+)", re.ASCII)
# Columns of the number of updates, the most reliable first: W&B's also counts rows of validation.
STEPS = ("train/global_step", "training/global_step", "global_step", "step", "Step", "_step")
NAMES = {
    # TRL
    "reward": "train/reward",
    "entropy": "policy/entropy",
    "grad_norm": "train/grad_norm",
    "learning_rate": "train/learning_rate",
    "loss": "train/loss",
    "completions/mean_length": "train/response_length",
    "clip_ratio/region_mean": "train/clip_fraction",
    "sampling/sampling_logp_difference/mean": "mismatch/abs_logp_diff_mean",
    "num_tokens": "progress/tokens",
    "step_time": "time/step_seconds",
    # verl
    "critic/rewards/mean": "train/reward",
    "actor/entropy": "policy/entropy",
    "actor/grad_norm": "train/grad_norm",
    "actor/lr": "train/learning_rate",
    "actor/pg_loss": "train/loss",
    "actor/pg_clipfrac": "train/clip_fraction",
    "response_length/mean": "train/response_length",
    "timing_s/step": "time/step_seconds",
}
# verl's accuracy on a set: val-core/<set>/acc/mean@<k>
_HELD_OUT = re.compile(r"val-core/(?P<set>.+)/acc/mean@(?P<k>\d+)")
# Kept under their own names. The rest, such as sixty timings of verl, is left out: p-values are adjusted for
# everything that is compared.
_KEPT = re.compile(r"eval_reward|rewards/.+/mean|val-core/.+")
_EXPORTED = " - "  # in W&B's tables, between the name of a run and of a metric
_EXTREMES = ("__MIN", "__MAX")
Rows = dict[int, dict[str, float]]  # by update


class ForeignRun(NamedTuple):
    """A log of another trainer, with what it does not say itself."""

    algorithm: str
    seed: int
    staleness: int  # updates on each rollout batch
    path: Path


def foreign_run(text: str) -> ForeignRun | None:
    """The run that NAME:SEED=PATH or NAME:SEED:STALENESS=PATH names; None if a text is neither."""
    match = _SPEC.fullmatch(text)
    if match is None:
        return None
    name, seed, staleness, path = match.groups()
    return ForeignRun(name, int(seed), int(staleness or 1), Path(path))


def import_run(run: ForeignRun, target: Path) -> Path:
    """Writes a log as a folder below `target`, and returns it. DataError: it is unreadable or empty."""
    rows, is_finished = log_rows(run.path, renamed)
    folder = target / f"{run.algorithm}-{run.staleness}-s{run.seed}"
    folder.mkdir(parents=True, exist_ok=True)
    manifest = {
        "experiment": "imported",
        "algorithm": run.algorithm,
        "seed": run.seed,
        "staleness": run.staleness,
        "command": str(run.path),
        "wall_seconds": math.fsum(row.get("time/step_seconds", 0.0) for row in rows.values()),
        "status": "finished" if is_finished else "stopped before its max_steps",
    }
    write_json(folder / "manifest.json", manifest)
    write_json(folder / "config.yaml", {"seed": run.seed, "algorithm": {"name": run.algorithm}})
    lines = (json.dumps({"step": step, **rows[step]}) for step in sorted(rows))
    write_text(folder / "metrics.jsonl", "".join(f"{line}\n" for line in lines))
    return folder


def log_rows(path: Path, rename: Callable[[str], str | None]) -> tuple[Rows, bool]:
    """Metrics of a log by update, under the names that `rename` gives them (None: left out), and whether the
    run is known to be complete. Raises DataError: it is unreadable or empty.
    """
    file, is_finished = _file_of(path)
    try:
        rows = _merged(_records(file), rename)
    except (ValueError, AttributeError, TypeError, RecursionError, OSError, csv.Error) as error:
        raise DataError(f"{file} is not a log that can be compared ({error}); {_FORMS}") from None
    if not rows:
        raise DataError(f"{file} has no update: no row has a metric and one of {', '.join(STEPS)}; {_FORMS}")
    return rows, is_finished


_FORMS = (
    "give TRL's output folder or trainer_state.json, verl's .jsonl, an event file of TensorBoard, or a table "
    "of W&B as .csv or .jsonl"
)


def _file_of(path: Path) -> tuple[Path, bool]:
    """The log that a path names, and whether it is known to be complete, as all are that do not say."""
    if path.is_file():
        states = [path] if path.suffix == ".json" else []
    else:
        states = [*path.glob("trainer_state.json"), *path.glob("checkpoint-*/trainer_state.json")]
    if states:
        known = {state: _state(state) for state in states}
        newest = max(states, key=lambda state: known[state].get("global_step") or 0)
        done, wanted = (known[newest].get(key) or 0 for key in ("global_step", "max_steps"))
        return newest, done >= wanted
    if path.is_file():
        return path, True
    # A run in progress may remove a folder meanwhile, which `os.walk` passes over.
    files = (Path(folder, name) for folder, _, names in os.walk(path) for name in names)
    logs = [file for file in files if "tfevents" in file.name or file.suffix in (".jsonl", ".csv")]
    if len(logs) != 1:
        held = f"holds {len(logs)} logs" if path.is_dir() else "does not exist"
        raise DataError(f"{path} {held}, but one is needed; {_FORMS}")
    return logs[0], True


class _State(TypedDict):
    """trainer_state.json."""

    log_history: list[dict[str, Any]]
    global_step: NotRequired[Count | None]
    max_steps: NotRequired[int | None]


def _state(path: Path) -> dict[str, Any]:
    try:
        state = json.loads(path.read_text(encoding="utf-8", errors="replace"))
        if not isinstance(state, dict) or "log_history" not in state:
            raise ValueError("it has no log_history")
        return dict(shaped(_State, state))
    except (ValueError, RecursionError, OSError) as error:
        raise DataError(f"{path} is not a trainer's state ({error}); {_FORMS}") from None


def _records(file: Path) -> Iterator[Mapping[str, Any]]:
    """Rows of a log unchanged, each with its step under one of `STEPS`."""
    if "tfevents" in file.name:
        yield from ({"step": step, tag: value} for step, tag, value in scalars(file))
    elif file.suffix == ".json":
        yield from _state(file)["log_history"]
    elif file.suffix == ".csv":
        with file.open(newline="", encoding="utf-8", errors="replace") as lines:
            yield from csv.DictReader(lines)
    else:
        with file.open(encoding="utf-8", errors="replace") as lines:
            for line in lines:
                try:
                    row = json.loads(line)
                except ValueError:  # torn by a kill
                    continue
                # verl's logger has the metrics one level deeper.
                yield {"step": row.get("step"), **row["data"]} if isinstance(row.get("data"), dict) else row


def updates_without(path: Path, metric: str) -> list[int]:
    """Updates of a log that `log_rows` reads, at which a metric of this package is NaN or infinite."""
    updates = set()
    for record in _records(_file_of(path)[0]):
        step = _step(record)
        named = {key: value for key, value in record.items() if isinstance(key, str)}  # not of too long rows
        values = [value for key, value in named.items() if renamed(key.rpartition(_EXPORTED)[2]) == metric]
        if step is not None and any(map(_is_lost, values)):
            updates.add(int(step))
    return sorted(updates)


def _step(record: Mapping[str, Any]) -> float | None:
    """The update of a row; None if it has none, or no number of one."""
    step = next((number for key in STEPS if (number := _number(record.get(key))) is not None), None)
    return step if step is not None and 0 <= step < 1 << 53 else None


def _is_lost(value: Any) -> bool:
    try:
        return not math.isfinite(float(value))
    except (ValueError, TypeError, OverflowError):
        return False


def _merged(records: Iterable[Mapping[str, Any]], rename: Callable[[str], str | None]) -> Rows:
    rows: Rows = {}
    runs: set[str] = set()  # whose columns an export of W&B has
    for record in records:
        if (step := _step(record)) is None:
            continue
        if not step.is_integer():
            raise ValueError(f"step {step:g} is between two updates, so it is not a log of each update")
        for key, value in record.items():
            number = _number(value)
            if key in STEPS or number is None or key.endswith(_EXTREMES):
                continue
            of, _, metric = key.rpartition(_EXPORTED)
            if (name := rename(metric)) is not None:
                runs.add(of)
                rows.setdefault(int(step), {})[name] = number
    if len(runs) > 1:
        raise ValueError(f"it has columns of several runs, {', '.join(sorted(runs))}; export them one by one")
    return rows


@cache
def renamed(name: str) -> str | None:
    """Our name of a metric, or its own if it is kept; None if it is left out."""
    if match := _HELD_OUT.fullmatch(name):
        return f"val/{match['set'].replace('/', '-')}/avg@{match['k']}"
    bare = name.removeprefix("train/")  # TRL's prefix in TensorBoard and W&B
    ours = NAMES.get(name) or NAMES.get(bare) or name
    if is_listed(ours):
        return ours
    bare = bare.replace("eval/", "eval_")
    return bare if _KEPT.fullmatch(bare) else None


def _number(value: Any) -> float | None:
    try:
        number = float(value) if isinstance(value, int | float | str) else math.nan
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


_MESSAGES = ("tensorboard.compat.proto.event_pb2", "tensorboardX.proto.event_pb2")
_HEADER, _CHECKSUM = struct.Struct("<Q4x"), 4  # length and its checksum; checksum of what follows


def scalars(path: Path) -> Iterator[tuple[int, str, float]]:
    """Yields step, tag and value of each scalar of a file, up to a torn record. Raises DataError."""
    event, content, place = _event(path), path.read_bytes(), 0
    while place + _HEADER.size <= len(content):
        (length,) = _HEADER.unpack_from(content, place)
        begin, place = place + _HEADER.size, place + _HEADER.size + length + _CHECKSUM
        if place > len(content):
            return
        try:
            read = event.FromString(content[begin : begin + length])
        except Exception as error:  # of protobuf, whose versions have different types
            raise DataError(f"{path} is not an event file of TensorBoard, or damaged ({error})") from None
        for value in read.summary.value:
            if value.HasField("simple_value"):
                yield read.step, value.tag, float(value.simple_value)
            elif value.HasField("tensor") and len(value.tensor.float_val) == 1:
                yield read.step, value.tag, float(value.tensor.float_val[0])


def _event(path: Path) -> Any:
    for name in _MESSAGES:
        try:
            return import_module(name).Event
        except ImportError:
            continue
    raise DataError(
        f"{path} is TensorBoard's, for which a package is not installed: "
        ".venv/bin/python -m pip install tensorboard"
    )
