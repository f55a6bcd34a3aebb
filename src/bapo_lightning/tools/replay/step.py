"""One update as a file: safetensors of its tokens, with JSON about the rest.

    micro-batches of a trainer --capture--> FILE --read_step--> Step --replay--> numbers of any algorithm

Nothing in a file is executed: a step may come from another person. Shapes: N tokens of B responses, response
after response.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor
from typing_extensions import TypedDict  # pydantic reads typing's only from Python 3.12

from bapo_lightning.callbacks.writers import to_floats
from bapo_lightning.configuration.compose import dotted_keys, node_at
from bapo_lightning.losses import OPTIONAL, OWN, PolicyLoss, flat
from bapo_lightning.modules.policy.folder import safetensors_problem
from bapo_lightning.objectives.token_table import INTEGERS
from bapo_lightning.system.errors import DataError, suggestion
from bapo_lightning.system.run_folder.shapes import Count, Number, shaped
from bapo_lightning.system.values import Name
from bapo_lightning.types import Origin

VERSION = 1  # of the format
KEY = "bapo_lightning_step"  # of the JSON in the metadata
MOST_BYTES = 4 << 30  # of a file
MOST_RESPONSES = 1 << 13
MOST_PLACES = 1 << 26  # of a grid, responses times the longest one's tokens
LENGTH, PART, GROUP, REWARD = "length", "part", "group", "reward"
ENTRY = "entry_logp"  # nats, of the policy when the batch entered training; no formula reads it
NEEDED = ("logp", "behaviour_logp", "advantages")
TOKENS = (*NEEDED, ENTRY, *(name for name in OPTIONAL if name not in (GROUP, "sequence")))  # columns, [N]
RESPONSES = (LENGTH, PART, GROUP, REWARD)  # columns, [B]; the first two are always there
WHOLE = {*INTEGERS, LENGTH, PART}  # columns of whole numbers that are not negative
# Largest values; 1e-3 nats leaves room for the rounding of a probability of 1.
MOST: dict[str, float] = {name: 1e-3 for name in TOKENS if name.endswith("logp")}
MOST |= {PART: MOST_RESPONSES, "origin": max(Origin)}
ABOUT = ("algorithm", "settings", "update", "numbers")  # fields of a step in the JSON
Leaf = str | int | float | bool | None


class _About(TypedDict):
    version: Literal[1]
    algorithm: Name | None
    settings: dict[str, Leaf]
    update: Count | None
    numbers: dict[str, Number]


@dataclass(frozen=True)
class Step:
    """One update, as it was trained on."""

    columns: dict[str, Tensor]  # by name: `TOKENS`, [N], and `RESPONSES`, [B]
    algorithm: str | None = None  # that it was recorded under; None: unknown
    settings: Mapping[str, Any] = field(default_factory=dict)  # options of it, by key below `algorithm`
    update: int | None = None  # number of the update, from 0
    numbers: Mapping[str, float] = field(default_factory=dict)  # that the trainer reported of it


def capture(
    file: str | Path,
    parts: Sequence[Mapping[str, Tensor]],
    loss: PolicyLoss | None = None,
    update: int | None = None,
    numbers: Mapping[str, float | Tensor] | None = None,
) -> Path:
    """Writes one update as a file that `bapo-replay` reads, replacing it, and returns its path. On several
    ranks, each writes its own share: give each its own file name, or gather first.

    Args:
        file: to write; its folder is made.
        parts: micro-batches of the update in order, each with the arguments of `PolicyLoss.forward` by name,
            `group` [B]; and, if known, `reward` [B] and `entry_logp` [B, T], log-probs of the policy when
            the batch entered training.
        loss: that it was trained with; None: another one.
        update: number of the update, from 0.
        numbers: that the trainer found, to be shown next to replayed ones: `loss`, `clip_low`, `clip_high`,
            `positive_share`, `clip_fraction`.

    Raises:
        ValueError: `read_step` would refuse the file, or micro-batches have other columns.
    """
    known = (*TOKENS, GROUP, REWARD)
    if not parts:
        raise ValueError("a step needs the micro-batches of an update, got none")
    for name in {name for part in parts for name in part} - {*known, "mask"}:
        raise ValueError(f"{name} is not a column of a step; {suggestion(name, known)}")
    names = [name for name in known if any(name in part for part in parts)]
    for name in {*OWN, *names}:
        if missing := [number for number, part in enumerate(parts) if name not in part]:
            raise ValueError(f"micro-batch {missing[0]} has no {name}; all need {', '.join([*OWN, *names])}")
    masks = [part["mask"].bool() for part in parts]
    columns = {LENGTH: torch.cat([mask.sum(1) for mask in masks])}
    columns[PART] = torch.arange(len(masks)).repeat_interleave(torch.tensor(list(map(len, masks))))
    for name in names:
        values = [part[name] for part in parts]
        if name not in RESPONSES:
            columns[name] = torch.cat([flat(name, *each) for each in zip(values, masks, strict=True)])
        elif wrong := [
            value for value, mask in zip(values, masks, strict=True) if value.shape != mask[:, 0].shape
        ]:
            raise ValueError(f"{name} must have a number for each response, [B], got {list(wrong[0].shape)}")
        else:
            columns[name] = torch.cat(values)
    kinds = {each: torch.promote_types(columns[each].dtype, torch.float32) for each in columns}
    columns = {each: columns[each].to(torch.long if each in WHOLE else kinds[each]) for each in columns}
    step = Step(columns, update=update, numbers=to_floats(dict(numbers or {})))
    if loss is not None:
        step = replace(step, algorithm=loss.name, settings=leaves(loss.settings))
    return write_step(Path(file), step)


def leaves(plain: Mapping[str, Any]) -> dict[str, Leaf]:
    """Returns the values below a node by dotted key; a list as text."""
    values = {key: node_at(plain, key.split(".")) for key in dotted_keys(plain)}
    known = {key: value for key, value in values.items() if not isinstance(value, Mapping)}
    return {key: value if isinstance(value, Leaf) else str(value) for key, value in known.items()}


def write_step(file: Path, step: Step) -> Path:
    """Writes a step whole or not at all; returns `file`. Raises ValueError if `read_step` would refuse it."""
    about = {"version": VERSION} | {name: getattr(step, name) for name in ABOUT}
    tensors = {name: values.detach().cpu().contiguous() for name, values in step.columns.items()}
    shaped(_About, about)
    try:
        _judge(tensors)
        content = save(tensors, {KEY: json.dumps(about)})
        if len(content) > MOST_BYTES:
            raise DataError(f"is too large: {len(content):,} bytes, {MOST_BYTES:,} at most")
    except ValueError as error:
        raise ValueError(f"the update {error}") from None
    file.parent.mkdir(parents=True, exist_ok=True)
    partial = file.with_name(f".{file.name}.{os.getpid()}.partial")
    partial.write_bytes(content)
    return partial.replace(file)


def read_step(file: str | Path) -> Step:
    """Reads a step. Raises DataError if it is missing, torn, too large, or not of this version's form."""
    path = Path(file)
    try:
        return _read(path)
    except (SafetensorError, ValueError, RecursionError) as error:
        remedy = "; write it again with callbacks=capture or bapo_lightning.capture"
        raise DataError(f"{path} {error}{'' if isinstance(error, DataError) else remedy}") from None


def _read(path: Path) -> Step:
    if path.is_file() and (size := path.stat().st_size) > MOST_BYTES:
        raise DataError(f"is too large: {size:,} bytes, {MOST_BYTES:,} at most")
    if problem := safetensors_problem(path):
        raise ValueError(problem)
    with safe_open(path, "pt") as opened:
        text = (opened.metadata() or {}).get(KEY)
        if text is None:
            raise ValueError(f"is not a step: its metadata have no {KEY}")
        about = json.loads(text)
        version = about.get("version") if isinstance(about, dict) else None
        if version != VERSION:
            raise ValueError(f"has version {version} of the format, and this release reads {VERSION}")
        shaped(_About, about)
        columns = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
    _judge(columns)
    return Step(columns, *(about[name] for name in ABOUT))


def _judge(columns: Mapping[str, Tensor]) -> None:
    """Raises ValueError with the first problem of a step's columns, a DataError if no other capture helps."""
    for name in sorted(columns.keys() - {*TOKENS, *RESPONSES}):
        raise ValueError(f"has an unknown column {name}; {suggestion(name, (*TOKENS, *RESPONSES))}")
    for name in (LENGTH, PART, *NEEDED):
        if name not in columns:
            raise ValueError(f"has no column {name}")
    num_tokens, num_responses = columns["logp"].numel(), columns[LENGTH].numel()
    if not num_tokens:
        raise ValueError("has no token")
    for name, values in columns.items():
        shape, is_whole = [num_responses if name in RESPONSES else num_tokens], name in WHOLE
        if list(values.shape) != shape:
            raise ValueError(f"has {name} of shape {list(values.shape)}, not {shape}")
        if values.dtype not in ((torch.int64,) if is_whole else (torch.float32, torch.float64)):
            raise ValueError(f"has {name} as {values.dtype}, not as {'int64' if is_whole else 'float32'}")
        most = MOST.get(name, math.inf)
        wrong = ~values.isfinite() | (values > most) | (values < (0 if is_whole else -math.inf))
        if place := wrong.nonzero()[:1].flatten().tolist():
            number = values[place[0]].item()
            raise ValueError(f"has {wrong.sum()} wrong values of {name}, the first {number} at {place[0]}")
    longest, total = int(columns[LENGTH].max()), int(columns[LENGTH].sum())
    if total != num_tokens:
        raise ValueError(f"has {num_tokens} tokens, but its lengths add up to {total}")
    if num_responses > MOST_RESPONSES or num_responses * longest > MOST_PLACES:
        limits = f"{MOST_RESPONSES:,} responses and {MOST_PLACES:,} padded tokens at most"
        raise DataError(f"is too large: {num_responses} responses of up to {longest} tokens, {limits}")
