"""Builds what depends on the ranks of a run: engines, Lightning's strategy, and the whole of a follower."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightning as L
from hydra.errors import InstantiationException
from hydra.utils import instantiate
from lightning.pytorch.strategies import DDPStrategy, Strategy

from bapo_lightning.callbacks.graceful_stop import GracefulStop
from bapo_lightning.callbacks.hf_export import HfExport
from bapo_lightning.callbacks.monitors.entropy_rule import EntropyRuleMonitor
from bapo_lightning.callbacks.run_checkpoint import RunCheckpoint
from bapo_lightning.callbacks.validation import Validation
from bapo_lightning.callbacks.watchdog import Watchdog
from bapo_lightning.configuration.regime_checks import IN_PROCESS_VLLM
from bapo_lightning.configuration.targets import without_unset
from bapo_lightning.data.rollouts.regime import Regime
from bapo_lightning.data.worker import WorkerDataModule
from bapo_lightning.errors import BapoLightningError
from bapo_lightning.modules.fsdp.sharding import Sharding
from bapo_lightning.modules.fsdp.strategy import ShardedStrategy
from bapo_lightning.modules.policy.folder import model_path
from bapo_lightning.ranks.channel import Channel
from bapo_lightning.ranks.rank_group import RankGroup, own_gpu, uses_cuda
from bapo_lightning.rollout.distributed.engine import DistributedEngine, LocalEngine
from bapo_lightning.rollout.engine import RolloutEngine
from bapo_lightning.runs.resume import RunStart

Config = dict[str, Any]


def make(node: Config | None, **extra: Any) -> Any:
    """Instantiate a `_target_` node; plain containers stay plain. Our own errors come as they are, not
    wrapped by Hydra.
    """
    try:
        return instantiate(without_unset(node), _convert_="all", **extra)
    except InstantiationException as error:
        if isinstance(error.__cause__, BapoLightningError):
            raise error.__cause__ from None
        raise


def build_strategy(strategy: Config, team: RankGroup) -> Strategy | str:
    """Lightning's strategy. Its launcher has nothing to do: the ranks have met already."""
    if strategy["name"] == "ddp":
        # Nothing in the policy changes but by the optimizer; gradients are summed where they lie.
        return DDPStrategy(forward_sync_buffers=False, gradient_as_bucket_view=True)
    if strategy["name"] == "fsdp":
        return ShardedStrategy(team.size, strategy["sharded_checkpoints"], strategy["cpu_offload"])
    return "auto"


def build_sharding(strategy: Config) -> Sharding | None:
    """How the policy is sharded, if it is."""
    if strategy["name"] != "fsdp":
        return None
    switches = ("reshard_after_forward", "cpu_offload", "reduce_every_micro_batch")
    return Sharding(strategy["compute_dtype"], **{name: strategy[name] for name in switches})


def build_worker(config: Config, regime: Regime, team: RankGroup) -> WorkerDataModule:
    """What a rank has of the data side that is not the leader."""
    control, engines = rank_channels(config, team)
    num_updates = config["scale"]["num_rollout_batches"] * regime.updates_per_rollout_batch
    on_controller_only = config["rollout"]["placement"] == "controller"
    return WorkerDataModule(
        LocalEngine(None if on_controller_only else make_engine(config, team)), control, engines, num_updates
    )


def build_worker_callbacks(config: Config, start: RunStart, team: RankGroup) -> list[L.Callback]:
    """Those that take part in what all ranks do together."""
    options = config["callbacks"]
    shared = [EntropyRuleMonitor(options["measure_entropy_every"]), Validation([], options["validate_every"])]
    return [*shared, *build_exports(config, start.folder), *build_common_callbacks(config, start, team)]


def build_exports(config: Config, folder: Path) -> list[L.Callback]:
    """Exports of the policy during training, which all ranks write together."""
    options = config["callbacks"]
    every, keep, dtype = (options[name] for name in ("export_every", "exports_kept", "export_dtype"))
    return (
        [HfExport(folder, model_path(config["model"]["path"]), config, every, keep, dtype)] if every else []
    )


def build_common_callbacks(config: Config, start: RunStart, team: RankGroup) -> list[L.Callback]:
    """What watches, ends and saves a run, on every rank."""
    trainer, minutes = config["trainer"], config["callbacks"]["watchdog_minutes"]
    times = trainer["checkpoint_every"], trainer["checkpoint_minutes"], trainer["checkpoints_kept"]
    return [
        *([Watchdog(start.folder, 60 * minutes, team.rank)] if minutes else []),
        GracefulStop(),
        RunCheckpoint(start.folder, *times, start.checkpoint, team),
    ]


def rank_channels(config: Config, team: RankGroup) -> tuple[Channel, ...]:
    """(of the trainer's thread, of whoever generates); nothing for a process of its own."""
    if team.control is None or team.engines is None:
        return ()
    return team.control, team.engines if config["regime"]["async_generation"] else team.control


def distributed_engine(
    config: Config, engine: RolloutEngine, channels: tuple[Channel, ...]
) -> DistributedEngine:
    """The engines of all ranks as one, for the leader, whose own is `engine`."""
    rollout = config["rollout"]
    in_process = rollout["engine"]["_target_"] == IN_PROCESS_VLLM
    ranks_per_engine = rollout["engine"]["options"]["tensor_parallel_size"] if in_process else 1
    control, engines = channels
    return DistributedEngine(
        LocalEngine(engine), control, engines, ranks_per_engine, rollout["placement"] == "controller"
    )


def make_engine(config: Config, team: RankGroup) -> RolloutEngine:
    """This rank's rollout engine."""
    node, own = config["rollout"]["engine"], {}
    # Engines in processes of their own would all take the first GPU.
    if team.size > 1 and node.get("visible_gpus", "") is None and uses_cuda(config["trainer"]["accelerator"]):
        own = {"visible_gpus": own_gpu(team.local_rank)}
    engine: RolloutEngine = make(node, model_path=model_path(config["model"]["path"]), **own)
    return engine
