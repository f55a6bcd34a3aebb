"""Builds the objects of a run from its checked configuration. The only place that knows how they fit together."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import lightning as L
from hydra.errors import InstantiationException
from hydra.utils import instantiate
from lightning.pytorch.callbacks import RichProgressBar
from lightning.pytorch.loggers import Logger
from transformers import AutoTokenizer, GenerationConfig

from bapo_lightning.callbacks.alarm import build_alarms
from bapo_lightning.callbacks.clip_bounds import ClipBoundsMonitor
from bapo_lightning.callbacks.contribution import ContributionMonitor
from bapo_lightning.callbacks.correction import CorrectionMonitor
from bapo_lightning.callbacks.entropy import EntropyMonitor
from bapo_lightning.callbacks.entropy_rule import EntropyRuleMonitor
from bapo_lightning.callbacks.graceful_stop import GracefulStop
from bapo_lightning.callbacks.live_numbers import LiveNumbers
from bapo_lightning.callbacks.metrics_file import MetricsFile
from bapo_lightning.callbacks.mismatch import MismatchMonitor
from bapo_lightning.callbacks.record import Record
from bapo_lightning.callbacks.run_checkpoint import RunCheckpoint
from bapo_lightning.callbacks.run_manifest import RunManifest
from bapo_lightning.callbacks.sample_table import SampleTable
from bapo_lightning.callbacks.staleness import StalenessMonitor
from bapo_lightning.callbacks.throughput import ThroughputMonitor
from bapo_lightning.callbacks.training import TrainingMonitor
from bapo_lightning.callbacks.validation import Validation
from bapo_lightning.callbacks.watchdog import Watchdog
from bapo_lightning.cli.model_folder import model_path
from bapo_lightning.cli.resume import RunStart
from bapo_lightning.data.problem_stream import ProblemStream
from bapo_lightning.data.prompt_limit import keep_short_prompts
from bapo_lightning.data.prompts import PromptRule
from bapo_lightning.data.regime import Regime
from bapo_lightning.data.rollout_data_module import RolloutDataModule
from bapo_lightning.data.rollout_sampler import RolloutSampler
from bapo_lightning.data.validation import ValidationSet
from bapo_lightning.errors import BapoLightningError, DataError
from bapo_lightning.modules.bapo_module import BapoModule
from bapo_lightning.modules.policy import Policy
from bapo_lightning.rollout.engine import SamplingParams
from bapo_lightning.rollout.recovery import EngineRecovery
from bapo_lightning.types import Problem

Config = dict[str, Any]
VALIDATION_SEED = 20251021  # the same draws in every run, so that validation curves differ by the policy alone


@dataclass(frozen=True)
class Inputs:
    """What is read before anything is started, so that a missing file or package shows at once."""

    path: str  # of the model
    tokenizer: Any
    prompt: PromptRule
    train: list[Problem]
    validation: list[Problem]
    overlong: list[Problem]  # training problems whose prompts are too long


def make(node: Config | None, **extra: Any) -> Any:
    """Instantiate a `_target_` node; plain containers stay plain. Our own errors come as they are, not wrapped by Hydra."""
    try:
        return instantiate(node, _convert_="all", **extra)
    except InstantiationException as error:
        if isinstance(error.__cause__, BapoLightningError):
            raise error.__cause__ from None
        raise


def read_inputs(config: Config) -> Inputs:
    """Tokenizer and problems. Raises DataError when one of them cannot be loaded."""
    path = model_path(config["model"]["path"])
    try:
        tokenizer = AutoTokenizer.from_pretrained(path)
    except (OSError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise DataError(
            f"model.path={path} could not be loaded ({reason}); write a folder, or fetch it first: hf download {path}"
        ) from None
    data, limit = config["data"], config["scale"]["max_prompt_tokens"]
    prompt = make(data["prompt"])
    encode = partial(prompt, tokenizer)
    train, overlong = keep_short_prompts(make(data["train"]), encode, limit, "data.train")
    validation, _ = keep_short_prompts(make(data["validation"]), encode, limit, "data.validation")
    return Inputs(path, tokenizer, prompt, train, validation, overlong)


def build_data_module(config: Config, inputs: Inputs, folder: Path) -> RolloutDataModule:
    """Engine, sampler, queue: everything before the update."""
    scale, rollout, algorithm = config["scale"], config["rollout"], config["algorithm"]
    sampler = RolloutSampler(
        engine=make(rollout["engine"], model_path=inputs.path),
        tokenizer=inputs.tokenizer,
        prompt=inputs.prompt,
        reward=make(config["reward"]),
        sampling=SamplingParams(rollout["temperature"], stop_token_ids(inputs.path, inputs.tokenizer)),
        max_new_tokens=scale["max_new_tokens"],
        seed=config["seed"],
        length_shaping=make(algorithm["length_shaping"]),
    )
    return RolloutDataModule(
        sampler=sampler,
        weight_sync=make(rollout["weight_sync"]),
        recovery=EngineRecovery(rollout["max_restarts"]),
        stream=ProblemStream(inputs.train, config["seed"], inputs.overlong),
        admission=make(algorithm["admission"]),
        advantages=make(algorithm["advantages"]),
        regime=make(config["regime"]),
        group_size=scale["group_size"],
        prompts_per_batch=scale["prompts_per_batch"],
        num_rollout_batches=scale["num_rollout_batches"],
        seed=config["seed"],
        recompute_logprobs=config["correction"]["weights"] is not None,
        ledger_path=folder / "ledger.jsonl",
    )


def stop_token_ids(path: str, tokenizer: Any) -> tuple[int, ...]:
    """Tokens that end a response: the tokenizer's end token and those of the model's generation config, where it has one."""
    try:
        configured = GenerationConfig.from_pretrained(path).eos_token_id
    except OSError:
        configured = None
    listed = configured if isinstance(configured, list) else [configured]
    return tuple(sorted({token for token in [tokenizer.eos_token_id, *listed] if token is not None}))


def build_module(config: Config, regime: Regime) -> BapoModule:
    """Policy, bound rule, objective, optimizer: the update."""
    algorithm, optimizer, model = config["algorithm"], config["optimizer"], config["model"]
    make_policy = partial(Policy.from_pretrained, model_path(model["path"]), config["rollout"]["temperature"], model["dtype"])
    return BapoModule(
        make_policy=make_policy,
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
    )


def build_callbacks(config: Config, start: RunStart, regime: Regime, inputs: Inputs, progress_bar: bool) -> list[L.Callback]:
    """Monitors first, then what reads their metrics, then what ends and saves the run."""
    options, trainer, scale, folder = config["callbacks"], config["trainer"], config["scale"], start.folder
    validation_set = ValidationSet(config["data"]["name"], inputs.validation, scale["validation_samples"], VALIDATION_SEED)
    description = {
        "experiment": config["name"],
        "algorithm": config["algorithm"]["name"],
        "regime": regime.name,
        "seed": config["seed"],
        "staleness": regime.updates_per_rollout_batch,
        "training_problems": len(inputs.train),
        "overlong_prompts_skipped": len(inputs.overlong),
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
        Validation([validation_set], options["validate_every"]),
        ThroughputMonitor(),
        *build_alarms(options["alarms"]),
        Record(),
        SampleTable(folder, options["samples_every"], options["samples_num_groups"]),
        LiveNumbers(options["print_every"]),
        *([RichProgressBar()] if progress_bar else []),
        RunManifest(folder, description, start.resume_entry),
        *([Watchdog(folder, 60 * options["watchdog_minutes"])] if options["watchdog_minutes"] else []),
        GracefulStop(),
        RunCheckpoint(folder, trainer["checkpoint_every"], trainer["checkpoint_minutes"], trainer["checkpoints_kept"], start.checkpoint),
    ]


def build_loggers(config: Config, folder: Path) -> list[Logger]:
    """The run's own record, and whatever else was chosen."""
    return [MetricsFile(folder), *(make(node) for node in (config.get("logger") or {}).values())]
