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
import yaml

from bapo_lightning.cli.build import build_callbacks, build_data_module, build_loggers, build_module, read_inputs
from bapo_lightning.cli.checks import complaints
from bapo_lightning.errors import ConfigError
from bapo_lightning.report.console import print_summary
from bapo_lightning.report.plots import plot_run
from bapo_lightning.report.summary import write_summary

# Lightning's advice about what is meant here (no workers, dropout off, no optimizer state before the first update), or its own upkeep.
EXPECTED_WARNINGS = (
    ".*does not have many workers.*",
    ".*no pre-optimization state was saved.*",
    ".*module.s. in eval mode at the start of training.*",
    ".*LeafSpec.* is deprecated.*",
)


def run(config: dict[str, Any]) -> None:
    """Train as `config` says. Raises ConfigError with every complaint before any weight is loaded."""
    found = complaints(config)
    if found:
        raise ConfigError(found)
    quiet_lightning()
    if config["trainer"]["cpu_threads"]:
        torch.set_num_threads(config["trainer"]["cpu_threads"])
    L.seed_everything(config["seed"], verbose=False)
    inputs = read_inputs(config)
    folder = Path(config["run_folder"])
    data_module = build_data_module(config, inputs, folder)
    module = build_module(config, data_module.regime)
    make_run_folder(config, folder)
    progress_bar = sys.stdout.isatty()
    trainer = L.Trainer(
        accelerator=config["trainer"]["accelerator"],
        devices=config["trainer"]["devices"],
        max_epochs=1,
        callbacks=build_callbacks(config, folder, data_module.regime, inputs, progress_bar),
        logger=build_loggers(config, folder),
        log_every_n_steps=1,
        enable_progress_bar=progress_bar,
        enable_model_summary=False,
        default_root_dir=folder,
    )
    introduce(config, data_module.num_updates, data_module.regime.updates_per_rollout_batch, folder)
    if inputs.num_skipped:
        limit = config["scale"]["max_prompt_tokens"]
        print(f"{inputs.num_skipped} training problems are skipped: their prompts are longer than scale.max_prompt_tokens={limit}")
    try:
        trainer.fit(module, datamodule=data_module)
    finally:
        data_module.close()  # Lightning leaves it open after an error
        if trainer.is_global_zero and (folder / "manifest.json").exists():  # else it failed before there was a run
            summary = write_summary(folder)
            plot_run(folder)
            print_summary(summary, folder)


def make_run_folder(config: dict[str, Any], folder: Path) -> None:
    """Create the run's own folder and write its resolved configuration there. Raises ConfigError when it cannot be made or is taken."""
    try:
        folder.mkdir(parents=True)
        (folder / "config.yaml").write_text(yaml.safe_dump(config, sort_keys=False, allow_unicode=True), encoding="utf-8")
    except FileExistsError:
        raise ConfigError([f"run_folder={folder} exists already, and nothing in it may be lost; write another run_folder"]) from None
    except OSError as error:
        raise ConfigError([f"run_folder={folder} cannot be made ({error.strerror}); write another output_root"]) from None


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
