"""One training run from a resolved configuration: check, build, fit, report."""

from __future__ import annotations

import logging
import os
import sys
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path

import lightning as L
import torch
import transformers
from lightning.pytorch.loggers import Logger

from bapo_lightning.callbacks.loggers.catch_up import catch_up
from bapo_lightning.callbacks.loggers.hand_over import conclude_run, describe_run
from bapo_lightning.callbacks.run_checkpoint import DirectCheckpointIO
from bapo_lightning.callbacks.run_manifest import RunManifest
from bapo_lightning.configuration.checks import complaints
from bapo_lightning.configuration.plan_check import check_architecture, check_fit
from bapo_lightning.configuration.rank_checks import rank_complaints
from bapo_lightning.data.data_module import RolloutDataModule
from bapo_lightning.data.problems.selection import account_lines
from bapo_lightning.data.worker import WorkerDataModule
from bapo_lightning.errors import BapoLightningError, ConfigError
from bapo_lightning.modules.bapo_module import BapoModule
from bapo_lightning.ranks.channel import rank_loss_raised
from bapo_lightning.ranks.rank_group import ALONE, RankGroup, join
from bapo_lightning.report.run.console import print_summary
from bapo_lightning.report.run.plots import plot_run
from bapo_lightning.report.run.summary import write_summary
from bapo_lightning.run_folder.checkpoint import TRAINER_FILE, Checkpoint
from bapo_lightning.run_folder.record import read_rows
from bapo_lightning.runs.build import (
    Inputs,
    build_callbacks,
    build_data_module,
    build_loggers,
    build_module,
    read_inputs,
)
from bapo_lightning.runs.build_ranks import Config, build_strategy, build_worker, build_worker_callbacks, make
from bapo_lightning.runs.resume import RunStart, open_run

# Lightning's advice about what is meant here (no workers, dropout off), or its own upkeep.
EXPECTED_WARNINGS = (
    ".*does not have many workers.*",
    ".*your dataloader is not resumable.*",  # RunCheckpoint resumes the data itself
    ".*module.s. in eval mode at the start of training.*",
    ".*LeafSpec.* is deprecated.*",
    # the leader's monitors, on another rank
    ".*callbacks used to create the checkpoint need to be provided.*",
    ".*returned a view tensor.*",  # of FSDP2: nothing changes a policy's scores in place
    ".*srun. command is available.*",  # of a run that starts its ranks itself
)


def run_as_rank(config: Config, choose: Callable[[], Config]) -> None:
    """Train as one of the ranks, or as the only one.

    Args:
        config: as far as this process knows it: enough to meet the others.
        choose: makes the configuration, with the run folder; the leader's holds for all.

    Raises:
        ConfigError: every complaint, before any weight is loaded.
    """
    if list(rank_complaints(config)):
        raise ConfigError(complaints(config))
    trainer, needs_group = config["trainer"], config["strategy"]["name"] != "single"
    team = join(
        trainer["accelerator"],
        trainer["devices"],
        trainer["num_nodes"],
        trainer["rank_wait_minutes"],
        needs_group,
    )
    try:
        with rank_loss_raised():
            run(team.on_controller(choose), team)
    finally:
        team.close()


def run(config: Config, team: RankGroup = ALONE) -> None:
    """Train as `config` says. Raises ConfigError with every complaint before any weight is loaded."""
    start = begin(config, team)
    if start is None:
        return
    quiet_lightning()
    if config["trainer"]["cpu_threads"]:
        torch.set_num_threads(config["trainer"]["cpu_threads"])
    L.seed_everything(config["seed"], verbose=False)
    lead(config, start, team) if team.is_controller else follow(config, start, team)


def begin(config: Config, team: RankGroup) -> RunStart | None:
    """How the run begins, which the leader finds out; None when it is finished. It alone holds the lock."""
    locks = []

    def opened() -> RunStart | None:
        found = complaints(config)
        if found:
            raise ConfigError(found)
        check_fit(config)
        check_architecture(config["model"])
        start = open_run(config)
        if start is not None:
            locks.append(start.lock)
            start.lock = None
        return start

    start = team.on_controller(opened)
    if start is not None and locks:
        start.lock = locks[0]
    return start


def lead(config: Config, start: RunStart, team: RankGroup) -> None:
    """The run on the leader, which has the data side and writes all that is written."""

    def build() -> tuple[Inputs, RolloutDataModule, BapoModule]:
        inputs = read_inputs(config)
        data_module = build_data_module(config, inputs, start.folder, team)
        return inputs, data_module, build_module(config, data_module.regime)

    inputs, data_module, module = team.everywhere(build)
    team.on_controller(lambda: start.prepare(config))
    callbacks = build_callbacks(config, start, data_module.regime, inputs, sys.stdout.isatty(), team)
    trainer = make_trainer(config, start, team, callbacks, build_loggers(config, start.folder))
    introduce(
        config, data_module.num_updates, data_module.regime.updates_per_rollout_batch, start.folder, team.size
    )
    print("\n".join(account_lines(inputs.problems.account)), flush=True)
    try:
        describe_run(trainer.loggers, config)
        if not start.is_new:
            catch_up(trainer.loggers, read_rows(start.folder))
        train(trainer, module, data_module, start.checkpoint)
    finally:
        data_module.close()  # Lightning leaves it open after an error
        if (start.folder / "manifest.json").exists():  # else it failed before there was a run
            summary = write_summary(start.folder)
            plot_run(start.folder)
            print_summary(summary, start.folder)
            conclude_run(trainer.loggers, start.folder, summary)
        start.release()


def follow(config: Config, start: RunStart, team: RankGroup) -> None:
    """The run on any other rank."""

    def build() -> tuple[WorkerDataModule, BapoModule]:
        regime = make(config["regime"])
        return build_worker(config, regime, team), build_module(config, regime)

    data_module, module = team.everywhere(build)
    team.on_controller(lambda: None)  # the leader prepares the run folder
    trainer = make_trainer(config, start, team, build_worker_callbacks(config, start, team), [])
    try:
        train(trainer, module, data_module, start.checkpoint)
    except Exception as error:
        data_module.close()
        if (
            not data_module.has_ended
        ):  # its thread would keep this process, and with it all others, from ending
            if not isinstance(error, BapoLightningError):
                traceback.print_exc()
            os._exit(1)
        raise
    finally:
        data_module.close()


def make_trainer(
    config: Config, start: RunStart, team: RankGroup, callbacks: list[L.Callback], loggers: list[Logger]
) -> L.Trainer:
    """Lightning's trainer with the run's callbacks and loggers."""
    return L.Trainer(
        accelerator=config["trainer"]["accelerator"],
        devices=config["trainer"]["devices"],
        num_nodes=config["trainer"]["num_nodes"],
        strategy=build_strategy(config["strategy"], team),
        max_epochs=1,
        callbacks=callbacks,
        logger=loggers,
        plugins=[DirectCheckpointIO(), *([team.environment] if team.environment is not None else [])],
        log_every_n_steps=1,
        use_distributed_sampler=False,
        enable_progress_bar=team.is_controller and sys.stdout.isatty(),
        enable_model_summary=False,
        enable_checkpointing=False,  # Lightning's own: `RunCheckpoint` takes its place
        default_root_dir=start.folder,
    )


def train(
    trainer: L.Trainer,
    module: BapoModule,
    data_module: RolloutDataModule | WorkerDataModule,
    checkpoint: Checkpoint | None,
) -> None:
    """Train from the beginning or from a checkpoint to the end."""
    if checkpoint is not None and checkpoint.update >= data_module.num_updates:
        # Stopped between its last update and its end. Lightning would run the whole epoch again.
        if trainer.is_global_zero:
            print(f"all {data_module.num_updates} updates were done: only the report was missing")
        for callback in trainer.callbacks:  # type: ignore[attr-defined]
            if isinstance(callback, RunManifest):
                callback.finish()
        return
    trainer.fit(
        module, datamodule=data_module, ckpt_path=checkpoint.path / TRAINER_FILE if checkpoint else None
    )


def introduce(config: Config, num_updates: int, staleness: int, folder: Path, num_ranks: int) -> None:
    """Say what is about to happen, with the resolved counts: batch sizes are where frameworks are misread."""
    scale = config["scale"]
    rollouts = scale["prompts_per_batch"] * scale["group_size"]
    if num_ranks > 1:
        print(f"{num_ranks} ranks, strategy {config['strategy']['name']}")
    print(f"{config['algorithm']['name']} on {config['data']['name']}, seed {config['seed']} -> {folder}")
    print(
        f"{scale['num_rollout_batches']} rollout batches of {scale['prompts_per_batch']} problems x "
        f"{scale['group_size']} responses ({rollouts} rollouts), {staleness} updates on each (staleness "
        f"{staleness}): {num_updates} updates",
        flush=True,
    )


def quiet_lightning() -> None:
    """Silence advice that does not apply; errors and other warnings stay."""
    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
    transformers.utils.logging.disable_progress_bar()
    for message in EXPECTED_WARNINGS:
        warnings.filterwarnings("ignore", message=message)
