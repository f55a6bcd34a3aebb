"""One training run from a resolved configuration: check, build, fit, report."""

from __future__ import annotations

import logging
import sys
import warnings
from pathlib import Path
from typing import Any

import lightning as L
import torch
import transformers

from bapo_lightning.callbacks.catch_up import catch_up
from bapo_lightning.callbacks.checkpoint_folder import TRAINER_FILE, Checkpoint
from bapo_lightning.callbacks.run_checkpoint import DirectCheckpointIO
from bapo_lightning.callbacks.run_manifest import RunManifest
from bapo_lightning.cli.build import Inputs, build_callbacks, build_data_module, build_loggers, build_module, read_inputs
from bapo_lightning.cli.checks import complaints
from bapo_lightning.cli.resume import RunStart, open_run
from bapo_lightning.data.regime import Regime
from bapo_lightning.data.rollout_data_module import RolloutDataModule
from bapo_lightning.errors import ConfigError
from bapo_lightning.modules.bapo_module import BapoModule
from bapo_lightning.report.console import print_summary
from bapo_lightning.report.plots import plot_run
from bapo_lightning.report.run_folder import read_rows
from bapo_lightning.report.summary import write_summary

# Lightning's advice about what is meant here (no workers, dropout off), or its own upkeep.
EXPECTED_WARNINGS = (
    ".*does not have many workers.*",
    ".*your dataloader is not resumable.*",  # RunCheckpoint resumes the data itself
    ".*module.s. in eval mode at the start of training.*",
    ".*LeafSpec.* is deprecated.*",
)


def run(config: dict[str, Any]) -> None:
    """Train as `config` says. Raises ConfigError with every complaint before any weight is loaded."""
    found = complaints(config)
    if found:
        raise ConfigError(found)
    start = open_run(config)
    if start is None:
        return
    quiet_lightning()
    if config["trainer"]["cpu_threads"]:
        torch.set_num_threads(config["trainer"]["cpu_threads"])
    L.seed_everything(config["seed"], verbose=False)
    inputs = read_inputs(config)
    data_module = build_data_module(config, inputs, start.folder)
    module = build_module(config, data_module.regime)
    start.prepare(config)
    trainer = make_trainer(config, start, data_module.regime, inputs)
    introduce(config, data_module.num_updates, data_module.regime.updates_per_rollout_batch, start.folder)
    if inputs.overlong:
        limit = config["scale"]["max_prompt_tokens"]
        print(f"{len(inputs.overlong)} training problems are skipped: their prompts are longer than scale.max_prompt_tokens={limit}")
    try:
        if not start.is_new:
            catch_up(trainer.loggers, read_rows(start.folder))
        train(trainer, module, data_module, start.checkpoint)
    finally:
        data_module.close()  # Lightning leaves it open after an error
        if trainer.is_global_zero and (start.folder / "manifest.json").exists():  # else it failed before there was a run
            summary = write_summary(start.folder)
            plot_run(start.folder)
            print_summary(summary, start.folder)
        start.release()


def make_trainer(config: dict[str, Any], start: RunStart, regime: Regime, inputs: Inputs) -> L.Trainer:
    """Lightning's trainer with the run's callbacks and loggers."""
    progress_bar = sys.stdout.isatty()
    return L.Trainer(
        accelerator=config["trainer"]["accelerator"],
        devices=config["trainer"]["devices"],
        max_epochs=1,
        callbacks=build_callbacks(config, start, regime, inputs, progress_bar),
        logger=build_loggers(config, start.folder),
        plugins=[DirectCheckpointIO()],
        log_every_n_steps=1,
        enable_progress_bar=progress_bar,
        enable_model_summary=False,
        enable_checkpointing=False,  # Lightning's own: `RunCheckpoint` takes its place
        default_root_dir=start.folder,
    )


def train(trainer: L.Trainer, module: BapoModule, data_module: RolloutDataModule, checkpoint: Checkpoint | None) -> None:
    """Train from the beginning or from a checkpoint to the end."""
    if checkpoint is not None and checkpoint.update >= data_module.num_updates:
        # Stopped between its last update and its end. Lightning would run the whole epoch again.
        print(f"all {data_module.num_updates} updates were done: only the report was missing")
        for callback in trainer.callbacks:  # type: ignore[attr-defined]
            if isinstance(callback, RunManifest):
                callback.finish()
        return
    trainer.fit(module, datamodule=data_module, ckpt_path=checkpoint.path / TRAINER_FILE if checkpoint else None)


def introduce(config: dict[str, Any], num_updates: int, staleness: int, folder: Path) -> None:
    """Say what is about to happen, with the resolved counts: batch sizes are where frameworks are misread."""
    scale = config["scale"]
    rollouts = scale["prompts_per_batch"] * scale["group_size"]
    print(f"{config['algorithm']['name']} on {config['data']['name']}, seed {config['seed']} -> {folder}")
    print(
        f"{scale['num_rollout_batches']} rollout batches of {scale['prompts_per_batch']} problems x {scale['group_size']} responses "
        f"({rollouts} rollouts), {staleness} updates on each (staleness {staleness}): {num_updates} updates",
        flush=True,
    )


def quiet_lightning() -> None:
    """Silence advice that does not apply; errors and other warnings stay."""
    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
    transformers.utils.logging.disable_progress_bar()
    for message in EXPECTED_WARNINGS:
        warnings.filterwarnings("ignore", message=message)
