"""The folder of an evaluation: what it holds, whether an interrupted one may go on in it, and what was
sampled so far.

config.yaml     resolved settings, digests of the weights, of each set's problems and of their prompts
samples.jsonl   one line per sample, set by set, problem by problem; only ever appended to
results.json    every metric with its interval
manifest.json   versions, commit, command, how it ended
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bapo_lightning.configuration.changes import ABSENT
from bapo_lightning.configuration.evaluation_config import EvaluationConfig
from bapo_lightning.errors import CheckpointError, ConfigError, DataError
from bapo_lightning.evaluation.outcome import Outcomes, SampleOutcome
from bapo_lightning.run_folder.config_keys import leaves, may_differ_in_evaluation, names_evaluation
from bapo_lightning.run_folder.record import read_config
from bapo_lightning.types import FinishReason, ScoreStatus

Row = dict[str, Any]
SAMPLES = "samples.jsonl"
RESULTS = "results.json"


def default_folder(config: EvaluationConfig, evaluated: Mapping[str, Any]) -> Path:
    """A folder of its own for every checkpoint and setting, so that the same command finds what it began."""
    described = {**config.plain, "evaluated": evaluated}
    settings = {key: value for key, value in leaves(described) if names_evaluation(key)}
    short = hashlib.sha256(json.dumps(settings, sort_keys=True, default=str).encode()).hexdigest()[:8]
    name = f"{config.name}-{'+'.join(config.data.validation)}-k{config.k}-{short}"
    return Path(config.output_root, "eval", name)


def check_same_settings(folder: Path, plain: Mapping[str, Any]) -> None:
    """Refuse to go on with other settings than `folder` began with. Raises ConfigError with the keys that
    differ.
    """
    if not folder.exists():
        return
    if not (folder / "config.yaml").is_file():
        if {path.name for path in folder.iterdir()} - {".lock", ".config.yaml.partial"}:
            raise ConfigError(
                [
                    f"run_folder={folder} holds files, but no evaluation to go on with; write another "
                    "run_folder"
                ]
            )
        return
    old, new = dict(leaves(read_config(folder))), dict(leaves(plain))
    differing = [
        key
        for key in {**old, **new}
        if old.get(key, ABSENT) != new.get(key, ABSENT) and not may_differ_in_evaluation(key)
    ]
    if differing:
        raise ConfigError([
            *(
                f"{key}={new.get(key, ABSENT)}: {folder} began with {old.get(key, ABSENT)}"
                for key in differing
            ),
            f"write the values of {folder / 'config.yaml'} to go on with it, or another run_folder",
        ])  # fmt: skip


def read_rows(folder: Path) -> list[Row]:
    """The samples written so far; a torn last line is left out. Raises DataError for a line that is no
    sample.
    """
    path = folder / SAMPLES
    content = path.read_bytes() if path.exists() else b""
    rows = []
    for number, line in enumerate(content[: content.rfind(b"\n") + 1].splitlines(), 1):
        try:
            rows.append(json.loads(line))
        except ValueError:
            raise DataError(
                f"line {number} of {path} is corrupt; move the folder away to begin again"
            ) from None
    return rows


def check_order(rows: Sequence[Row], asked: Sequence[tuple[str, str, int]], folder: Path) -> None:
    """Raise CheckpointError unless the rows are the first of what is asked: (set, problem id, number of the
    sample).
    """
    for place, row in enumerate(rows):
        if place >= len(asked) or (row["set"], row["problem"], row["sample"]) != asked[place]:
            raise CheckpointError(
                f"line {place + 1} of {folder / SAMPLES} is not the sample that belongs there; move the "
                "folder away to begin again"
            )


def outcomes(rows: Sequence[Row]) -> dict[str, dict[str, Outcomes]]:
    """Set -> problem id -> outcomes of its samples, in the order of the rows."""
    found: dict[str, dict[str, list[SampleOutcome]]] = {}
    for row in rows:
        is_cut = row["finish"] == FinishReason.LENGTH
        sample = SampleOutcome(ScoreStatus(row["status"]), row["answer"], row["num_tokens"], is_cut)
        found.setdefault(row["set"], {}).setdefault(row["problem"], []).append(sample)
    return {name: dict(problems) for name, problems in found.items()}


def content_digest(parts: Sequence[Any]) -> str:
    """SHA-256 of plain values."""
    return hashlib.sha256(json.dumps(parts, ensure_ascii=False).encode()).hexdigest()
