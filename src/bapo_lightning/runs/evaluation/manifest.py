"""Manifest of an evaluation: command, platform, versions, duration and end of each session."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from bapo_lightning.callbacks.run_manifest import ending, environment, session_start
from bapo_lightning.run_folder.record import read_manifest
from bapo_lightning.run_folder.text_file import write_json
from bapo_lightning.types import Sample


class EvaluationManifest:
    """Keeps `manifest.json` true: `status` is running, finished, interrupted or failed."""

    def __init__(self, folder: Path) -> None:
        """`folder` exists, with a manifest when this is not the first session."""
        self._path = folder / "manifest.json"
        self._sessions = read_manifest(folder).get("sessions", [])
        self._start = time.perf_counter()
        self._session: dict[str, Any] = {
            **session_start(),
            **environment(),
            "num_samples": 0,
            "num_tokens": 0,
        }

    def count(self, samples: Sequence[Sample]) -> None:
        """Samples that are written down."""
        self._session["num_samples"] += len(samples)
        self._session["num_tokens"] += sum(sample.rollout.length for sample in samples)
        self._write("running")

    def __enter__(self) -> EvaluationManifest:
        self._write("running")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None and not isinstance(error, KeyboardInterrupt):
            self._session["error"] = f"{type(error).__name__}: {error}"
        self._write("finished" if error is None else ending(error))

    def _write(self, status: str) -> None:
        self._session["wall_seconds"] = round(time.perf_counter() - self._start, 3)
        sessions = [*self._sessions, self._session]
        write_json(self._path, {"kind": "evaluation", "status": status, "sessions": sessions})
