"""The folder of an evaluation: its files, whether an interrupted one may continue in it, its samples so far.

config.yaml     resolved settings, digests of the weights, of each set's problems and of their prompts
samples.jsonl   one line per sample, set by set, problem by problem; append-only
results.json    every metric with its interval
manifest.json   versions, commit, command, how it ended
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bapo_lightning.configuration.evaluation_config import EvaluationConfig
from bapo_lightning.objectives.outcome import Outcomes, SampleOutcome
from bapo_lightning.runs.resume import refuse_foreign_files
from bapo_lightning.system.errors import CheckpointError, ConfigError
from bapo_lightning.system.run_folder.config_keys import (
    differences,
    leaves,
    may_differ_in_evaluation,
    names_evaluation,
)
from bapo_lightning.system.run_folder.record import Row, read_config, read_lines
from bapo_lightning.system.run_folder.shapes import SampleRow
from bapo_lightning.types import FinishReason, ScoreStatus

SAMPLES = "samples.jsonl"
RESULTS = "results.json"


def default_folder(config: EvaluationConfig, evaluated: Mapping[str, Any]) -> Path:
    """A separate folder for every checkpoint and setting, so that the same command finds what it wrote."""
    described = {**config.plain, "evaluated": evaluated}
    settings = {key: value for key, value in leaves(described) if names_evaluation(key)}
    short = hashlib.sha256(json.dumps(settings, sort_keys=True, default=str).encode()).hexdigest()[:8]
    name = f"{config.name}-{'+'.join(config.data.validation)}-k{config.k}-{short}"
    return Path(config.output_root, "eval", name)


def check_same_settings(folder: Path, plain: Mapping[str, Any]) -> None:
    """Raises ConfigError with the keys that differ from those with which `folder` was started."""
    if not folder.exists():
        return
    if not (folder / "config.yaml").is_file():
        return refuse_foreign_files(folder, "no evaluation to continue")
    problems = [
        f"{key}={now}: {folder} began with {before}"
        for key, before, now in differences(read_config(folder), plain)
        if not may_differ_in_evaluation(key)
    ]
    if problems:
        remedy = f"write the values of {folder / 'config.yaml'} to continue it, or another run_folder"
        raise ConfigError([*problems, remedy])


def read_rows(folder: Path) -> list[Row]:
    """Reads the samples written so far, without a torn last line. Raises DataError for a corrupt line."""
    return read_lines(folder / SAMPLES, SampleRow, "move the folder away to start again")


def check_order(rows: Sequence[Row], planned: Sequence[tuple[str, str, int]], folder: Path) -> None:
    """Raises CheckpointError unless the rows are the first of `planned`: (set, problem id, sample number)."""
    for index, row in enumerate(rows):
        if index >= len(planned) or (row["set"], row["problem"], row["sample"]) != planned[index]:
            raise CheckpointError(
                f"line {index + 1} of {folder / SAMPLES} is not the sample that belongs there; move the "
                "folder away to start again"
            )


def outcomes(rows: Sequence[Row]) -> dict[str, dict[str, Outcomes]]:
    """Set -> problem id -> outcomes of its samples, in the order of the rows."""
    sets: dict[str, dict[str, list[SampleOutcome]]] = {}
    for row in rows:
        is_cut = row["finish"] == FinishReason.LENGTH
        sample = SampleOutcome(ScoreStatus(row["status"]), row["answer"], row["num_tokens"], is_cut)
        sets.setdefault(row["set"], {}).setdefault(row["problem"], []).append(sample)
    return {name: dict(problems) for name, problems in sets.items()}


def content_digest(parts: Sequence[Any]) -> str:
    """SHA-256 of plain values."""
    return hashlib.sha256(json.dumps(parts, ensure_ascii=False).encode()).hexdigest()
