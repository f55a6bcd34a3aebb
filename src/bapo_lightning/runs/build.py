"""Builds the objects of a run from its configuration; the only place that combines them.

RunConfig -> engine, sampler -> data module -+
-> policy, objective -> module     +-> BuiltRun -> fit
-> callbacks, loggers -> trainer --+
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import lightning as L
import torch
from lightning.pytorch.callbacks import Checkpoint, ProgressBar

from bapo_lightning.callbacks.run_checkpoint import DirectCheckpointIO
from bapo_lightning.configuration.run_config import RunConfig
from bapo_lightning.configuration.sections import AlgorithmNodes
from bapo_lightning.configuration.targets import Target
from bapo_lightning.data.controller import ControllerDataModule
from bapo_lightning.data.data_module import RolloutDataModule
from bapo_lightning.data.problems.stream import ProblemStream
from bapo_lightning.data.rollouts.answers import ValidationSet
from bapo_lightning.data.rollouts.collector import MakeCollector, collector_for
from bapo_lightning.data.rollouts.sampler import RolloutSampler
from bapo_lightning.data.rollouts.stages import BatchStage, EntryStage, ReferenceStage
from bapo_lightning.data.worker import WorkerDataModule
from bapo_lightning.modules.algorithm import Algorithm
from bapo_lightning.modules.bapo_module import BapoModule
from bapo_lightning.modules.bound_rules import BoundRule
from bapo_lightning.modules.fsdp import ShardedStrategy
from bapo_lightning.modules.policy.factory import build_policy
from bapo_lightning.modules.policy.folder import model_path, models_behind
from bapo_lightning.modules.policy.options import ModelOptions
from bapo_lightning.objectives.weighting import weigh
from bapo_lightning.rollout.distributed import DistributedEngine, LocalEngine
from bapo_lightning.rollout.engine import RolloutEngine, engine_class
from bapo_lightning.rollout.recovery import RestartingEngine
from bapo_lightning.rollout.weight_sync import WeightSync
from bapo_lightning.runs.callbacks import build_callbacks, build_loggers
from bapo_lightning.runs.inputs import Inputs, make_sampler, read_inputs, read_recorded_schedule
from bapo_lightning.runs.resume import RunStart
from bapo_lightning.system.errors import FOREIGN, ConfigError, in_words, pass_stops
from bapo_lightning.system.phases import phase
from bapo_lightning.system.ranks.channel import Channel
from bapo_lightning.system.ranks.rank_group import RankGroup, gpu_of_rank, uses_cuda

VALIDATION_SEED = 20251021  # the same in every run, so that validation curves differ only by the policy


@dataclass(frozen=True)
class BuiltRun:
    """The objects of one run on one rank."""

    trainer: L.Trainer
    module: BapoModule
    data_module: RolloutDataModule | WorkerDataModule
    account: dict[str, Any]  # account of the problems that were read; empty on ranks other than 0


def build(
    config: RunConfig, start: RunStart, ranks: RankGroup, make_collector: MakeCollector = collector_for
) -> BuiltRun:
    """Builds everything that trains, on this rank; rank 0 prepares the run folder. Every rank must call it.
    Raises BapoLightningError: an input is not available, or the run folder cannot be made.
    """
    parts = partial(_build_parts, config, start, ranks, make_collector)
    inputs, data_module, module, strategy = ranks.on_all_ranks(parts)
    account = inputs.problems.account if inputs else {}
    models = models_behind(config.plain) if inputs else {}
    needs_first_weights = config.model.lora is not None or config.scores_by_reference
    ranks.on_controller(lambda: start.prepare(config.plain, account, models, needs_first_weights))
    sets = validation_sets(config, inputs) if inputs else []
    description = {
        "experiment": config.name,
        "algorithm": config.algorithm.name,
        "regime": config.staleness.name,
        "seed": config.seed,
        "staleness": config.staleness.updates_per_rollout_batch,
        "problems": account,
        "models": models,
        "date": start.date.isoformat(),
        "first_prompt": inputs.first_prompt if inputs else "",
    }
    callbacks = build_callbacks(config, start, ranks, sets, description)
    loggers = build_loggers(config, start.folder) if ranks.is_controller else []
    trainer = config.trainer.make(
        L.Trainer,
        accelerator=config.accelerator,
        strategy=strategy,
        max_epochs=1,
        callbacks=callbacks,
        logger=loggers,
        plugins=[DirectCheckpointIO(), *([ranks.environment] if ranks.environment is not None else [])],
        log_every_n_steps=1,
        use_distributed_sampler=False,
        enable_progress_bar=any(isinstance(callback, ProgressBar) for callback in callbacks),
        max_time=None,  # a Timer among the callbacks, before the one that saves
        enable_model_summary=config.trainer.options["enable_model_summary"] is True,
        enable_checkpointing=any(isinstance(callback, Checkpoint) for callback in callbacks),
        default_root_dir=start.folder,
    )
    return BuiltRun(trainer, module, data_module, account)


def build_algorithm(nodes: AlgorithmNodes) -> Algorithm:
    """Returns the algorithm of a configuration."""
    return Algorithm(
        advantages=_tried(nodes.advantages, lambda advantages: advantages(torch.tensor([[1.0, 0.0]]))),
        objective=nodes.objective.make(1),
        bounds=nodes.bounds.make(BoundRule),
        weighting=_tried(nodes.weighting, lambda weighting: weigh(weighting, torch.ones(1, 2), 2.0, 1.0)),
        rules=nodes.make_rules(),
        stages={name: node.make(BatchStage) for name, node in nodes.stage_nodes.items()},
    )


def _tried(node: Target, call: Callable[[Any], Any]) -> Any:
    """Returns the node's object if it maps [1, 2] values to numbers. Raises ConfigError otherwise."""
    built = node.make()
    try:
        output = call(built)
    except FOREIGN as error:  # any error of foreign code
        pass_stops(error)
        raise ConfigError([f"{node.name} cannot be used ({in_words(error)})"]) from error
    if not isinstance(output, torch.Tensor) or output.shape != (1, 2):
        raise ConfigError([f"{node.name} returns a {type(output).__name__}, not a number for each value"])
    return built


def build_engine(config: RunConfig, ranks: RankGroup) -> RolloutEngine:
    """Returns this rank's rollout engine."""
    node, options = config.rollout.engine, {}
    # Engines in separate processes would all take the first GPU.
    if ranks.size > 1 and uses_cuda(config.accelerator) and node.options.get("visible_gpus", "") is None:
        options = {"visible_gpus": gpu_of_rank(ranks.local_rank)}
    with phase("starting the engine"):
        engine: RolloutEngine = node.make(RolloutEngine, model_path=model_path(config.model.path), **options)
    return engine


def _build_parts(
    config: RunConfig, start: RunStart, ranks: RankGroup, make_collector: MakeCollector
) -> tuple[Inputs | None, RolloutDataModule | WorkerDataModule, BapoModule, Any]:
    inputs = read_inputs(config, start.date) if ranks.is_controller else None
    data_module = (
        build_data_module(config, inputs, ranks, make_collector)
        if inputs
        else _worker_data_module(config, ranks)
    )
    strategy = config.strategy.make()
    return inputs, data_module, build_module(config, strategy), strategy


def build_data_module(
    config: RunConfig, inputs: Inputs, ranks: RankGroup, make_collector: MakeCollector = collector_for
) -> RolloutDataModule:
    """Builds engine, sampler and queue: everything before the update."""
    channels, engine = _channels(config, ranks), build_engine(config, ranks)
    others: dict[str, Any] = {"folder": config.folder, "make_collector": make_collector}
    if not channels:
        return RolloutDataModule(**data_parts(config, inputs, engine), **others)
    rollout = config.rollout
    ranks_per_engine = rollout.tensor_parallel_size if engine_class(rollout.engine.object).shares_gpu else 1
    on_controller_only = rollout.placement == "controller"
    control, engines = channels
    whole = DistributedEngine(LocalEngine(engine), control, engines, ranks_per_engine, on_controller_only)
    return ControllerDataModule(control, engines, **data_parts(config, inputs, whole), **others)


def data_parts(config: RunConfig, inputs: Inputs, engine: RolloutEngine) -> dict[str, Any]:
    """Returns arguments of a RolloutDataModule that samples with `engine`."""
    scale, algorithm, problems = config.scale, build_algorithm(config.algorithm), inputs.problems
    weight_sync, vocab_size = config.rollout.weight_sync.make(WeightSync), inputs.tokenizer.vocab_size
    max_restarts = config.rollout.max_restarts
    restarting = RestartingEngine(engine, weight_sync, vocab_size, max_restarts)
    scoring: dict[str, BatchStage] = (
        {"reference_scores": ReferenceStage()} if config.scores_by_reference else {}
    )
    if config.entry_scores:
        scoring["entry_scores"] = EntryStage(config.entry_scores)
    return {
        "sampler": build_sampler(config, inputs, restarting, algorithm),
        "stream": ProblemStream(problems.train, config.seed, problems.overlong, problems.mixing),
        "regime": config.staleness,
        "group_size": scale.group_size,
        "prompts_per_batch": scale.prompts_per_batch,
        "num_rollout_batches": scale.num_rollout_batches,
        "seed": config.seed,
        "stages": {**algorithm.stages, **scoring},
        "schedule": read_recorded_schedule(config, problems.train),
    }


def build_sampler(
    config: RunConfig, inputs: Inputs, engine: RestartingEngine, algorithm: Algorithm
) -> RolloutSampler:
    """Returns the sampler. Raises DataError if the problems have no field that a rule needs."""
    parts = engine, inputs.tokenizer, inputs.prompt, config.reward.make(2), config.num_candidates
    sampler = make_sampler(config, *parts, advantages=algorithm.advantages, rules=algorithm.rules)
    sampler.rules.check(inputs.problems.train, sampler.encode_prompt)
    return sampler


def _worker_data_module(config: RunConfig, ranks: RankGroup) -> WorkerDataModule:
    control, engines = _channels(config, ranks)
    num_updates = config.scale.num_rollout_batches * config.staleness.updates_per_rollout_batch
    engine = None if config.rollout.placement == "controller" else build_engine(config, ranks)
    return WorkerDataModule(LocalEngine(engine), control, engines, num_updates)


def build_module(config: RunConfig, strategy: Any) -> BapoModule:
    """Returns the module of the update, sharded if the strategy shards."""
    sharding = strategy.sharding if isinstance(strategy, ShardedStrategy) else None
    return BapoModule(**module_parts(config), sharding=sharding)


def module_parts(config: RunConfig) -> dict[str, Any]:
    """Returns arguments of a BapoModule: policy, bound rule, objective, optimizer."""
    correction, optimizer = config.correction, config.optimizer
    path, on_gpu = model_path(config.model.path), uses_cuda(config.accelerator)
    options = ModelOptions.of(config.model, path, on_gpu, config.scale.context_length)
    return {
        "make_policy": partial(
            build_policy, options, config.rollout.temperature, is_cut=config.rollout.is_cut, seed=config.seed
        ),
        "algorithm": build_algorithm(config.algorithm),
        "optimizer": optimizer.optimizer.make(),
        "scheduler": optimizer.scheduler.make(),
        "micro_batch_tokens": config.scale.micro_batch_tokens,
        "max_grad_norm": optimizer.max_grad_norm,
        "max_age": config.staleness.age_bound,
        "max_nonfinite_in_a_row": optimizer.max_nonfinite_in_a_row,
        "correction": correction.weights.make(1) if correction.weights else None,
        "proximal": correction.proximal.make(1) if correction.proximal else None,
        "step_scale": correction.step_scale.make(1) if correction.step_scale else None,
    }


def _channels(config: RunConfig, ranks: RankGroup) -> tuple[Channel, ...]:
    """Returns the channels of the trainer's and of the generating thread; empty for a single process."""
    if ranks.control is None or ranks.engines is None:
        return ()
    return ranks.control, ranks.engines if config.staleness.async_generation else ranks.control


def validation_sets(config: RunConfig, inputs: Inputs) -> list[ValidationSet]:
    """Returns held-out problems, with the number of answers to each."""
    samples, usual = config.data.validation_samples, config.scale.validation_samples
    return [
        ValidationSet(name, problems, samples.get(name, usual), VALIDATION_SEED)
        for name, problems in inputs.problems.validation.items()
    ]
