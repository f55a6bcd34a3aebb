"""Recorded texts as the pages show them: some updates, long texts cut."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bapo_lightning.system.run_folder.record import Row

_MOST_STEPS = 40  # updates whose samples are in the page of a run
_MOST_CHARACTERS = 4000  # of a response, and of an environment's replies to it
_MOST_TOKENS = 1000  # of a response, coloured


def has_turns(samples: Sequence[dict[str, Any]]) -> bool:
    """Whether an environment answered any of the responses."""
    return any("turns" in row for update in samples for row in update["rows"])


def samples_by_update(rollouts: Sequence[Row], most: int = _MOST_STEPS) -> list[dict[str, Any]]:
    """{step, rows} of at most `most` updates with texts, evenly spread, with the first and the last."""
    by_step: dict[int, list[Row]] = {}
    for row in rollouts:
        by_step.setdefault(int(row["step"]), []).append(row)
    steps = sorted(by_step)
    if len(steps) > most:
        steps = [steps[round(index * (len(steps) - 1) / (most - 1))] for index in range(most)]
    return [{"step": step, "rows": [*map(_cut_row, by_step[step])]} for step in dict.fromkeys(steps)]


def _cut_row(row: Row) -> Row:
    shown = {**row, "response": _cut(str(row.get("response", "")))}
    if "tokens" in row:
        shown["tokens"] = _first_tokens(row["tokens"])
    if "branch" in row:
        shown["prompt"] = _cut(row["prompt"])
    if "turns" in row:
        shown["turns"] = _cut_turns(row["turns"])
    return shown


def _first_tokens(tokens: dict[str, Any]) -> dict[str, Any]:
    known = max(_MOST_TOKENS - tokens["first"], 0)
    per_token = {name: tokens[name][:known] for name in ("ratio", "age", "clipped")}
    left_out = len(tokens["text"]) - _MOST_TOKENS
    rest = [f" ... ({left_out} tokens more)"] if left_out > 0 else []
    first = {"text": tokens["text"][:_MOST_TOKENS] + rest, "first": tokens["first"], **per_token}
    if "feedback_at" in tokens:
        first["feedback_at"] = [place for place in tokens["feedback_at"] if place <= _MOST_TOKENS]
    return first


def _cut_turns(turns: list[dict[str, Any]]) -> list[dict[str, Any]]:
    left = dict.fromkeys((turn["by"] for turn in turns), _MOST_CHARACTERS)
    cut = []
    for turn in turns:
        cut.append({**turn, "text": _cut(turn["text"], left[turn["by"]])})
        left[turn["by"]] = max(0, left[turn["by"]] - len(turn["text"]))
    return cut


def _cut(text: str, most: int = _MOST_CHARACTERS) -> str:
    left_out = len(text) - most
    return text if left_out <= 0 else f"{text[:most]} ... ({left_out} characters more)"
