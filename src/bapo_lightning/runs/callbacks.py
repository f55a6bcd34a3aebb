"""Builds callbacks and loggers of a run from their nodes in the configuration."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import lightning as L
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint, ProgressBar, Timer
from lightning.pytorch.loggers import Logger

from bapo_lightning.callbacks.alarm import build_alarms
from bapo_lightning.callbacks.graceful_stop import GracefulStop
from bapo_lightning.callbacks.loggers.run_logger import MetricsFile
from bapo_lightning.callbacks.monitors.gradient import GradientMonitor
from bapo_lightning.callbacks.monitors.turns import TurnMonitor
from bapo_lightning.callbacks.order import in_order
from bapo_lightning.callbacks.run_bar import RunBar
from bapo_lightning.callbacks.run_manifest import RunManifest
from bapo_lightning.callbacks.validation import StockHooks
from bapo_lightning.configuration.run_config import RunConfig
from bapo_lightning.configuration.targets import Target
from bapo_lightning.data.rollouts.answers import ValidationSet
from bapo_lightning.report.progress.display import on_terminal
from bapo_lightning.runs.resume import RunStart
from bapo_lightning.system.ranks.rank_group import RankGroup

MODEL_CHECKPOINTS = "model_checkpoints"  # in the run folder, for Lightning's ModelCheckpoint


def build_callbacks(
    config: RunConfig,
    start: RunStart,
    ranks: RankGroup,
    validation_sets: Sequence[ValidationSet],
    description: dict[str, Any],
) -> list[L.Callback]:
    """Returns the configured callbacks, and the callbacks of every run, in the order in which they act.

    A callback whose constructor has one of the parameters `validation_sets`, `resumed`, `ranks` and `run_id`
    gets this run's value. There are no `validation_sets` on ranks other than 0; the `description` goes into
    the manifest.
    """
    given = {
        "validation_sets": validation_sets,
        "resumed": start.checkpoint,
        "ranks": ranks,
        "run_id": start.run_id,
    }
    callbacks: list[L.Callback] = []
    if ranks.is_controller:  # first, so that the run is recorded from then on
        callbacks.append(RunManifest(start.folder, {"id": start.run_id, **description}, start.resume_entry))
    callbacks += [_build(node, given, start.folder) for node in _needed(config)]
    if config.trainer.options["max_time"] is not None:
        callbacks.append(Timer(config.trainer.options["max_time"]))
    callbacks += [*build_alarms(config.callbacks.alarms), GracefulStop(), StockHooks()]
    if ranks.is_controller:
        wants_bar = config.trainer.options["enable_progress_bar"] is not False and on_terminal()
        if wants_bar and not any(isinstance(callback, ProgressBar) for callback in callbacks):
            updates = config.staleness.updates_per_rollout_batch
            before = start.checkpoint.update if start.checkpoint is not None else 0
            callbacks.append(RunBar(config.scale.num_rollout_batches * updates, before, updates))
    return in_order(callbacks)


def build_monitors(config: RunConfig, validation_sets: Sequence[ValidationSet]) -> list[L.Callback]:
    """Returns the configured callbacks that measure, warn and log, and do not write into a run folder."""
    given = {"validation_sets": validation_sets}
    nodes = [node for node in _needed(config) if not node.takes("folder")]
    callbacks = [_build(node, given, Path(config.output_root)) for node in nodes]
    return in_order([*callbacks, *build_alarms(config.callbacks.alarms), StockHooks()])


def build_loggers(config: RunConfig, folder: Path) -> list[Logger]:
    """Returns the run's own record and the chosen loggers."""
    return [MetricsFile(folder), *(node.make(Logger) for node in config.logger.values())]


def _needed(config: RunConfig) -> list[Target]:
    """Returns the configured callbacks, except those that would do nothing in this run."""
    return [node for node in config.callbacks.nodes.values() if not _is_idle(node, config)]


def _is_idle(node: Target, config: RunConfig) -> bool:
    if node.object is TurnMonitor:
        return config.environment is None
    if node.object is GradientMonitor:
        return not node.cosine
    return getattr(node.object, "is_idle_at_zero", False) and not node.every


def _build(node: Target, given: dict[str, Any], folder: Path) -> L.Callback:
    options = {name: value for name, value in given.items() if node.takes(name)}
    # A run has neither epochs nor a validation loop: `StockHooks` signals measurements.
    if node.is_a(EarlyStopping) and node.options["check_on_train_epoch_end"] is None:
        options["check_on_train_epoch_end"] = False
    if node.is_a(ModelCheckpoint):
        if node.options["monitor"] is not None and node.options["save_on_train_epoch_end"] is None:
            options["save_on_train_epoch_end"] = False
        if node.options["dirpath"] is None:
            options["dirpath"] = folder / MODEL_CHECKPOINTS
    callback: L.Callback = node.make(L.Callback, **options)
    return callback
