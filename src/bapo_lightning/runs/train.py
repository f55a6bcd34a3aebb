"""Trains one run, from its composed configuration to its report.

    validate, check the machine -> join the ranks -> open the run folder -> build -> fit -> report

`cli.train` composes the configuration and calls `train`; this file is the rest of `make train`.
"""

from __future__ import annotations

import logging
import os
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import lightning as L
import torch
import transformers

from bapo_lightning.callbacks.graceful_stop import stop_code
from bapo_lightning.callbacks.loggers.run_logger import RunLogger
from bapo_lightning.callbacks.run_bar import RunBar
from bapo_lightning.callbacks.run_manifest import RunManifest, ending
from bapo_lightning.configuration.compose import wants_display
from bapo_lightning.configuration.machine import check_machine
from bapo_lightning.configuration.plan import check_architecture
from bapo_lightning.configuration.run_config import RunConfig
from bapo_lightning.configuration.validate import validate
from bapo_lightning.data.data_module import RolloutDataModule
from bapo_lightning.data.problems.selection import account_lines
from bapo_lightning.data.rollouts.collector import MakeCollector, collector_for
from bapo_lightning.data.worker import WorkerDataModule
from bapo_lightning.report.progress.display import displayed_phases, hidden
from bapo_lightning.report.run.console import print_summary
from bapo_lightning.report.run.plots import plot_run
from bapo_lightning.report.run.summary import write_summary
from bapo_lightning.runs.build import BuiltRun, build
from bapo_lightning.runs.resume import RunStart, open_run
from bapo_lightning.system.errors import BapoLightningError, DiskFull
from bapo_lightning.system.phases import phase
from bapo_lightning.system.precision import is_mixed
from bapo_lightning.system.ranks.channel import rank_loss_raised
from bapo_lightning.system.ranks.launch import leads
from bapo_lightning.system.ranks.rank_group import ALONE, RankGroup, join
from bapo_lightning.system.run_folder.checkpoint import TRAINER_FILE, Checkpoint
from bapo_lightning.system.run_folder.record import correct_status, read_manifest, read_rollouts, read_rows
from bapo_lightning.system.run_folder.text_file import is_disk_full
from bapo_lightning.system.stopping import at_once, heard, record_signal
from bapo_lightning.system.values import FULL, MIXED

# Lightning's advice about intended choices (no workers, dropout off), or about its own maintenance.
EXPECTED_WARNINGS = (
    ".*does not have many workers.*",
    ".*your dataloader is not resumable.*",  # RunCheckpoint resumes the data itself
    ".*module.s. in eval mode at the start of training.*",
    ".*Total length of .* across ranks is zero.*",  # held-out sets are answered outside Lightning's loop
    ".*LeafSpec.* is deprecated.*",
    ".*callbacks used to create the checkpoint need to be provided.*",  # the manifest's is on rank 0
    ".*returned a view tensor.*",  # FSDP2: nothing changes a policy's scores in place
    ".*srun. command is available.*",  # the run starts its ranks itself
    ".*no pre-optimization state was saved.*",  # ModelCheckpoint with manual optimisation
)


def train(config: dict[str, Any], find_folder: Callable[[], dict[str, Any]]) -> tuple[int, Path]:
    """Trains as a rank of a run; returns the exit code, 0 or the code of a signal's stop, and the run folder.
    `find_folder` returns the resolved `config` with the run folder; rank 0's result holds for all ranks.
    Raises ConfigError, which lists all mistakes, before any weight is loaded.
    """
    with heard(at_once if leads() else record_signal), displayed_phases(wants_display(config)):
        with phase("checking the configuration"):
            validated = validate(config)
            needs = check_machine(validated)
        if leads() and needs:
            print("\n".join(needs), flush=True)
        devices = validated.accelerator, validated.devices, validated.num_nodes
        ranks = join(*devices, validated.rank_timeout_minutes, needs_group=validated.is_distributed)
        try:
            with rank_loss_raised():
                common = validate(ranks.on_controller(find_folder))
                return run(common, ranks), common.folder
        finally:
            ranks.close()


def run(config: RunConfig, ranks: RankGroup = ALONE, make_collector: MakeCollector = collector_for) -> int:
    """Trains as `config` says, on this rank; returns the exit code."""
    start = ranks.on_controller(partial(begin, config))
    if start is None:
        return 0
    with settled(start, ranks):
        quiet_libraries()
        if config.cpu_threads:
            torch.set_num_threads(config.cpu_threads)
        L.seed_everything(config.seed, verbose=False)
        built = build(config, start, ranks, make_collector)
        with reported(built, config, start, ranks) if ranks.is_controller else ended(built.data_module):
            fit(built, start.checkpoint)
    return stop_code(built.trainer)


@contextmanager
def settled(start: RunStart, ranks: RankGroup) -> Iterator[None]:
    """Context that holds the run folder. After it, the manifest does not say "running"."""
    try:
        yield
    except BaseException as error:
        if ranks.is_controller:
            correct_status(start.folder, ending(error))
        raise
    finally:
        start.release()


def begin(config: RunConfig) -> RunStart | None:
    """Returns the start of the run; None if it is finished."""
    check_architecture(config.model)
    return open_run(config)


def fit(built: BuiltRun, checkpoint: Checkpoint | None) -> None:
    """Trains from the beginning or from a checkpoint to the end."""
    num_updates = built.data_module.num_updates
    if checkpoint is None or checkpoint.update < num_updates:
        path = checkpoint.path / TRAINER_FILE if checkpoint else None
        # A stock progress bar draws on the terminal itself.
        is_ours = isinstance(built.trainer.progress_bar_callback, RunBar | None)
        with nullcontext() if is_ours else hidden():
            built.trainer.fit(built.module, datamodule=built.data_module, ckpt_path=path)
        return
    # The run stopped between its last update and its end. Lightning would repeat the whole epoch.
    if built.trainer.is_global_zero:
        print(f"all {num_updates} updates were done: only the report was missing")
    for callback in built.trainer.callbacks:  # type: ignore[attr-defined]
        if isinstance(callback, RunManifest):
            callback.finish()


@contextmanager
def reported(built: BuiltRun, config: RunConfig, start: RunStart, ranks: RankGroup) -> Iterator[None]:
    """Announces the run on rank 0, and reports on it at its end, however it ends."""
    introduce(built, config, start, ranks)
    loggers = [logger for logger in built.trainer.loggers if isinstance(logger, RunLogger)]
    with raise_disk_full(start.folder):
        try:
            for logger in loggers:
                logger.describe({**config.plain, "staleness": config.staleness.updates_per_rollout_batch})
                if not start.is_new:
                    logger.catch_up(read_rows(start.folder))
            yield
        finally:
            with phase("closing the engine"):
                built.data_module.close()  # Lightning leaves it open after an error
            with phase("drawing plots"):
                summary = write_summary(start.folder)
                plot_run(start.folder)
            with hidden():
                print_summary(summary, start.folder)
            for logger in loggers:
                logger.conclude(summary, read_manifest(start.folder), read_rollouts(start.folder))


@contextmanager
def raise_disk_full(folder: Path) -> Iterator[None]:
    """Context that raises DiskFull, with a sentence, for every error that a full disk caused."""
    try:
        yield
    except Exception as error:
        if not is_disk_full(error):
            raise
        raise DiskFull(
            f"there is no space left to write to {folder}; free some, and continue from the last checkpoint "
            "with resume=auto"
        ) from None


@contextmanager
def ended(data_module: RolloutDataModule | WorkerDataModule) -> Iterator[None]:
    """Ends the process on any other rank, even if one of its threads still waits for another rank."""
    try:
        yield
    except Exception as error:
        data_module.close()
        if isinstance(data_module, WorkerDataModule) and not data_module.has_ended:
            if not isinstance(error, BapoLightningError):
                traceback.print_exc()
            os._exit(1)
        raise
    finally:
        data_module.close()


def introduce(built: BuiltRun, config: RunConfig, start: RunStart, ranks: RankGroup) -> None:
    """Prints the plan of the run with resolved counts, since batch sizes are often misunderstood."""
    scale, staleness = config.scale, config.staleness.updates_per_rollout_batch
    rollouts = scale.prompts_per_batch * scale.group_size
    if ranks.size > 1:
        print(f"{ranks.size} ranks, strategy {type(built.trainer.strategy).__name__}")
    mixed = is_mixed(built.trainer.precision)
    precision = f", {MIXED} (trainer.precision={FULL}: float32)" if mixed else ""
    print(f"{config.algorithm.name} on {config.data.name}, seed {config.seed}{precision} -> {start.folder}")
    print(
        f"{scale.num_rollout_batches} rollout batches of {scale.prompts_per_batch} problems x "
        f"{scale.group_size} responses ({rollouts} rollouts), {staleness} updates on each "
        f"(staleness {staleness}): {built.data_module.num_updates} updates"
    )
    low = config.algorithm.bounds.options.get("low")
    if isinstance(low, int | float) and low < 0.5:
        print(f"algorithm.bounds.low={low} is an importance ratio; for an epsilon of {low} write {1 - low:g}")
    oldest = config.staleness.age_bound
    if oldest == 0:
        print("every update is on fresh data: ratios are 1, no bound can act, the objective is REINFORCE")
    else:
        print(f"tokens are up to {oldest} updates old when trained; bounds can act on all that are not fresh")
    if config.staleness.schedule is not None:
        print(f"generation follows the schedule of {config.staleness.schedule}, alternating with training")
    print("\n".join(account_lines(built.account)), flush=True)


def quiet_libraries() -> None:
    """Silences advice that does not apply; errors and other warnings stay."""
    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
    for name in ("profilers", "callbacks.model_summary", "callbacks.timer"):
        logging.getLogger(f"lightning.pytorch.{name}").setLevel(logging.INFO)
    ignore_expected_warnings()


def ignore_expected_warnings() -> None:
    """Silences warnings about intended choices, and the bar of models that load in a second."""
    transformers.utils.logging.disable_progress_bar()
    for message in EXPECTED_WARNINGS:
        warnings.filterwarnings("ignore", message=message)
