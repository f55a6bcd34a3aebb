"""Builds the objects of a run from its checked configuration. The only place that knows how they fit
together.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import datasets
import lightning as L
from lightning.pytorch.callbacks import RichProgressBar
from lightning.pytorch.loggers import Logger
from transformers import AutoTokenizer, GenerationConfig

from bapo_lightning.callbacks.alarm import build_alarms
from bapo_lightning.callbacks.console_logger import ConsoleLogger
from bapo_lightning.callbacks.loggers.metrics_file import MetricsFile
from bapo_lightning.callbacks.monitors.clip_bounds import ClipBoundsMonitor
from bapo_lightning.callbacks.monitors.contribution import ContributionMonitor
from bapo_lightning.callbacks.monitors.correction import CorrectionMonitor
from bapo_lightning.callbacks.monitors.entropy import EntropyMonitor
from bapo_lightning.callbacks.monitors.entropy_rule import EntropyRuleMonitor
from bapo_lightning.callbacks.monitors.metrics_writer import MetricsWriter
from bapo_lightning.callbacks.monitors.mismatch import MismatchMonitor
from bapo_lightning.callbacks.monitors.staleness import StalenessMonitor
from bapo_lightning.callbacks.monitors.throughput import ThroughputMonitor
from bapo_lightning.callbacks.monitors.training import TrainingMonitor
from bapo_lightning.callbacks.rollout_writer import RolloutWriter
from bapo_lightning.callbacks.run_manifest import RunManifest
from bapo_lightning.callbacks.token_writer import TokenWriter
from bapo_lightning.callbacks.validation import Validation
from bapo_lightning.data.controller import ControllerDataModule
from bapo_lightning.data.data_module import RolloutDataModule
from bapo_lightning.data.problems.prompts import PromptRule
from bapo_lightning.data.problems.selection import Selection, select
from bapo_lightning.data.problems.stream import ProblemStream
from bapo_lightning.data.rollouts.regime import Regime
from bapo_lightning.data.rollouts.sampler import RolloutSampler
from bapo_lightning.data.rollouts.validation import ValidationSet
from bapo_lightning.errors import DataError
from bapo_lightning.modules.bapo_module import BapoModule
from bapo_lightning.modules.policy.factory import build_policy
from bapo_lightning.modules.policy.folder import model_path
from bapo_lightning.modules.policy.options import ModelOptions
from bapo_lightning.ranks.rank_group import RankGroup
from bapo_lightning.rollout.engine import SamplingParams
from bapo_lightning.rollout.recovery import RestartingEngine
from bapo_lightning.runs.build_ranks import (
    build_common_callbacks,
    build_exports,
    build_sharding,
    distributed_engine,
    make,
    make_engine,
    rank_channels,
)
from bapo_lightning.runs.resume import RunStart
from bapo_lightning.types import Problem

Config = dict[str, Any]
VALIDATION_SEED = (
    20251021  # the same draws in every run, so that validation curves differ by the policy alone
)


@dataclass(frozen=True)
class Inputs:
    """What is read before anything is started, so that a missing file or package shows at once."""

    path: str  # of the model
    tokenizer: Any
    prompt: PromptRule
    problems: Selection


def read_inputs(config: Config) -> Inputs:
    """Tokenizer and problems. Raises DataError when one of them cannot be loaded."""
    path = model_path(config["model"]["path"])
    try:
        tokenizer = AutoTokenizer.from_pretrained(path)
    except (OSError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise DataError(
            f"model.path={path} could not be loaded ({reason}); write a folder, or fetch it first: hf "
            f"download {path}"
        ) from None
    prompt = make(config["data"]["prompt"])
    return Inputs(path, tokenizer, prompt, read_problems(config, partial(prompt, tokenizer)))


def read_problems(config: Config, encode: Callable[[Problem], array[int]]) -> Selection:
    """Training and validation problems, filtered; `encode` gives a prompt's token ids. Raises DataError when
    they cannot be had.
    """
    data, scale = config["data"], config["scale"]
    if not sys.stderr.isatty():
        datasets.disable_progress_bars()
    train = make(data["train"])
    validation = {name: make(node) for name, node in data["validation"].items()}
    return select(
        train,
        validation,
        make(data["filters"]),
        encode,
        scale["max_prompt_tokens"],
        scale["validation_problems"],
    )


def build_data_module(config: Config, inputs: Inputs, folder: Path, team: RankGroup) -> RolloutDataModule:
    """Engine, sampler, queue: everything before the update."""
    scale, rollout, algorithm = config["scale"], config["rollout"], config["algorithm"]
    channels, engine, num_engines = rank_channels(config, team), make_engine(config, team), 1
    if channels:
        engine = distributed = distributed_engine(config, engine, channels)
        num_engines = distributed.num_engines
    sampler = RolloutSampler(
        engine=RestartingEngine(
            engine,
            make(rollout["weight_sync"]),
            inputs.tokenizer.vocab_size,
            rollout["max_restarts"],
            num_engines,
        ),
        tokenizer=inputs.tokenizer,
        prompt=inputs.prompt,
        reward=make(config["reward"]),
        sampling=SamplingParams(rollout["temperature"], stop_token_ids(inputs.path, inputs.tokenizer)),
        max_new_tokens=scale["max_new_tokens"],
        seed=config["seed"],
        length_shaping=make(algorithm["length_shaping"]),
        advantages=make(algorithm["advantages"]),
    )
    make_module = partial(ControllerDataModule, *channels) if channels else RolloutDataModule
    return make_module(
        sampler=sampler,
        stream=ProblemStream(
            inputs.problems.train, config["seed"], inputs.problems.overlong, inputs.problems.mixing
        ),
        admission=make(algorithm["admission"]),
        regime=make(config["regime"]),
        group_size=scale["group_size"],
        prompts_per_batch=scale["prompts_per_batch"],
        num_rollout_batches=scale["num_rollout_batches"],
        seed=config["seed"],
        recompute_logprobs=config["correction"]["weights"] is not None,
        ledger_path=folder / "ledger.jsonl",
    )


def stop_token_ids(path: str, tokenizer: Any) -> tuple[int, ...]:
    """Tokens that end a response: the tokenizer's end token and those of the model's generation config, where
    it has one.
    """
    try:
        configured = GenerationConfig.from_pretrained(path).eos_token_id
    except OSError:
        configured = None
    listed = configured if isinstance(configured, list) else [configured]
    return tuple(sorted({token for token in [tokenizer.eos_token_id, *listed] if token is not None}))


def model_options(model: Config) -> ModelOptions:
    """Choices about the model, from the configuration's `model` node."""
    return ModelOptions.of(model, model_path(model["path"]))


def build_module(config: Config, regime: Regime) -> BapoModule:
    """Policy, bound rule, objective, optimizer: the update."""
    algorithm, optimizer = config["algorithm"], config["optimizer"]
    return BapoModule(
        make_policy=partial(build_policy, model_options(config["model"]), config["rollout"]["temperature"]),
        bound_rule=make(algorithm["bounds"]),
        objective=make(algorithm["objective"]),
        weighting=make(algorithm["weighting"]),
        optimizer=make(optimizer["optimizer"]),
        scheduler=make(optimizer["scheduler"]),
        micro_batch_tokens=config["scale"]["micro_batch_tokens"],
        max_grad_norm=optimizer["max_grad_norm"],
        max_age=regime.age_bound,
        max_nonfinite_in_a_row=optimizer["max_nonfinite_in_a_row"],
        correction=make(config["correction"]["weights"]),
        sharding=build_sharding(config["strategy"]),
    )


def build_callbacks(
    config: Config, start: RunStart, regime: Regime, inputs: Inputs, progress_bar: bool, team: RankGroup
) -> list[L.Callback]:
    """Monitors first, then what reads their metrics, then what ends and saves the run."""
    options, scale, folder = config["callbacks"], config["scale"], start.folder
    samples = config["data"]["validation_samples"]
    validation_sets = [
        ValidationSet(name, problems, samples.get(name, scale["validation_samples"]), VALIDATION_SEED)
        for name, problems in inputs.problems.validation.items()
    ]
    description = {
        "experiment": config["name"],
        "algorithm": config["algorithm"]["name"],
        "regime": regime.name,
        "seed": config["seed"],
        "staleness": regime.updates_per_rollout_batch,
        "problems": inputs.problems.account,
    }
    return [
        TrainingMonitor(),
        EntropyMonitor(),
        ContributionMonitor(config["algorithm"]["contribution_weight"]),
        ClipBoundsMonitor(),
        StalenessMonitor(),
        MismatchMonitor(),
        CorrectionMonitor(),
        EntropyRuleMonitor(options["measure_entropy_every"]),
        Validation(validation_sets, options["validate_every"]),
        ThroughputMonitor(),
        *build_alarms(options["alarms"]),
        MetricsWriter(),
        RolloutWriter(folder, options["samples_every"], options["samples_num_groups"]),
        TokenWriter(folder, options["tokens_every"]),
        ConsoleLogger(options["print_every"]),
        *([RichProgressBar()] if progress_bar else []),
        *build_exports(config, folder),
        RunManifest(folder, description, start.resume_entry),
        *build_common_callbacks(config, start, team),
    ]


def build_loggers(config: Config, folder: Path) -> list[Logger]:
    """The run's own record, and whatever else was chosen."""
    return [MetricsFile(folder), *(make(node) for node in (config.get("logger") or {}).values())]
