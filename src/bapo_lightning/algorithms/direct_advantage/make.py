"""Makes the critic of a run from its composed configuration: samples, trains, saves.

model.path --engine--> responses to training problems --> training --> model folder
"""

from __future__ import annotations

import random
import re
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any

import lightning as L
import torch
from annotated_types import Ge, Gt, Le, Lt, MinLen

from bapo_lightning.algorithms.direct_advantage.critic import CRITIC_KEY, build_critic
from bapo_lightning.algorithms.direct_advantage.steps import StepSplitter
from bapo_lightning.algorithms.direct_advantage.training import (
    Example,
    examples_of,
    fit_critic,
    with_completions,
)
from bapo_lightning.configuration.machine import check_machine
from bapo_lightning.configuration.parse import added_node
from bapo_lightning.configuration.run_config import RunConfig
from bapo_lightning.configuration.sections import Section
from bapo_lightning.configuration.validate import validate
from bapo_lightning.data.rollouts.answers import all_samples, sample_answers
from bapo_lightning.data.rollouts.sampler import RolloutSampler
from bapo_lightning.modules.policy.factory import build_policy
from bapo_lightning.modules.policy.folder import model_path
from bapo_lightning.modules.policy.options import ModelOptions
from bapo_lightning.rollout.recovery import RestartingEngine
from bapo_lightning.rollout.weight_sync import WeightSync
from bapo_lightning.runs.build import build_algorithm, build_engine, build_sampler
from bapo_lightning.runs.inputs import Inputs, read_inputs
from bapo_lightning.runs.train import quiet_libraries
from bapo_lightning.system.errors import DataError
from bapo_lightning.system.phases import phase
from bapo_lightning.system.ranks.rank_group import ALONE, uses_cuda
from bapo_lightning.system.values import MOST, Count, Positive, Size
from bapo_lightning.tools.export.model_folder import check_target
from bapo_lightning.types import Problem


class CriticOptions(Section):
    """Keys of `make critic` in addition to a run's keys; docs/methods.md explains them."""

    to: Annotated[str, MinLen(1)]  # folder to make
    overwrite: bool = False
    # Number of tokens in a step, or a regular expression that ends a step.
    split: Annotated[int, Ge(1)] | Annotated[str, MinLen(1)] = r"\n+"
    num_problems: Count | None = None  # of the training problems; None: all
    samples: Size = 8  # responses to each problem
    # Number for each prefix, in addition to its own response; the paper: 16.
    completions: Annotated[int, Ge(0), Le(MOST)] = 0
    held_out: Annotated[float, Gt(0), Lt(1)] = 0.1  # share of the problems used to judge it
    epochs: Size = 1
    batch_size: Size = 64  # responses in an update
    learning_rate: Positive | None = None  # None: the run's

    def problems(self) -> Iterator[str]:
        """Yields a message if the regular expression cannot be read."""
        try:
            re.compile(str(self.split))
        except re.error as error:
            yield f"split={self.split} is not a regular expression ({error}); write one or a number of tokens"


def make_critic(plain: dict[str, Any]) -> Path:
    """Samples responses, trains a critic on them, writes its folder and returns the path.

    `plain` is the resolved configuration of a run, with the node `critic`.

    Raises:
        ConfigError: with everything that is wrong.
        DataError: problems, model or responses cannot be used.
    """
    config, options = read_critic(plain)
    folder = Path(options.to)
    if folder.exists() and not options.overwrite:
        raise DataError(f"{folder} exists already; write another critic.to, or critic.overwrite=true")
    check_target(folder, overwrite=True)
    quiet_libraries()
    if config.cpu_threads:
        torch.set_num_threads(config.cpu_threads)
    L.seed_everything(config.seed, verbose=False)
    inputs = read_inputs(config)
    train, held_out = sampled_examples(config, inputs, options)
    record: dict[str, Any] = {"split": options.split, "policy": config.model.path}
    model = build_critic(model_path(config.model.path), config.model.dtype, record)
    rate = options.learning_rate or config.optimizer.optimizer.options["lr"]
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}.") as scratch:
        quality = fit_critic(
            model,
            train,
            held_out,
            rate,
            options.epochs,
            options.batch_size,
            config.accelerator,
            Path(scratch, "best"),
        )
        setattr(model.config, CRITIC_KEY, record | quality)
        whole = Path(scratch, "model")  # so that the folder appears whole or not at all
        model.save_pretrained(whole)
        inputs.tokenizer.save_pretrained(whole)
        shutil.rmtree(folder, ignore_errors=True)
        whole.rename(folder)
    print(
        "{prefixes} held-out prefixes: Brier score {brier:.4f} ({brier_of_mean:.4f} for the mean score), "
        "calibration error {calibration_error:.4f}".format(**quality)
    )
    return folder


def read_critic(plain: dict[str, Any]) -> tuple[RunConfig, CriticOptions]:
    """Returns the typed configuration, without the run's own critic, which is not needed.

    Raises:
        ConfigError: with everything that is wrong.
    """
    options = added_node("critic", CriticOptions, plain)
    algorithm = plain["algorithm"]
    plain["algorithm"] = {**algorithm, "stages": {**algorithm["stages"], "step_advantages": None}}
    config = validate(plain)
    if not uses_cuda(config.accelerator):  # with CUDA a critic needs one GPU, however many its run uses
        check_machine(config)
    return config, options


def split_problems(
    problems: Sequence[Problem], options: CriticOptions, seed: int
) -> tuple[list[Problem], list[Problem]]:
    """Returns problems to learn from, and held-out problems; raises DataError if there is only one."""
    chosen = random.Random(seed).sample(
        list(problems), min(options.num_problems or len(problems), len(problems))
    )
    if len(chosen) < 2:
        raise DataError(
            "a critic needs two problems, one of them held out; write a larger critic.num_problems"
        )
    held_out = min(max(round(options.held_out * len(chosen)), 1), len(chosen) - 1)
    return chosen[held_out:], chosen[:held_out]


def sampled_examples(
    config: RunConfig, inputs: Inputs, options: CriticOptions
) -> tuple[list[Example], list[Example]]:
    """Returns training and held-out examples, from responses of the model that the run starts from."""
    parts = split_problems(inputs.problems.train, options, config.seed)
    total = options.samples * sum(map(len, parts))
    print(f"{total} responses to {len(parts[0])} problems, and {len(parts[1])} that are held out", flush=True)
    requests = [all_samples(part, options.samples) for part in parts]
    with closing(policy_sampler(config, inputs)) as sampler:
        splitter = StepSplitter(inputs.tokenizer, options.split, sampler.ends)
        with phase("sampling"):
            sampled = [sample_answers(sampler, part) for part in requests]
        train, held_out = (examples_of(samples, splitter) for samples in sampled)
        if options.completions:
            problems = [problem for problem, _ in requests[0]]
            train = with_completions(train, problems, sampler, options.completions)
    outcomes, prefixes = [example.outcome for example in train], sum(len(example.states) for example in train)
    print(
        f"mean score {fmean(outcomes):.3f}, {prefixes / len(train):.1f} steps in a response, {prefixes} "
        "prefixes to learn from",
        flush=True,
    )
    if len(set(outcomes)) == 1:
        raise DataError(
            f"all responses have the score {outcomes[0]:g}, so that there is nothing to predict; use other "
            "problems, or more of critic.samples"
        )
    if prefixes == len(train):
        print("no response has a second step, so each gets one advantage; write another critic.split")
    return train, held_out


def policy_sampler(config: RunConfig, inputs: Inputs) -> RolloutSampler:
    """Returns a sampler whose engine has the weights that the run starts from."""
    rollout = config.rollout
    weight_sync, vocab_size = rollout.weight_sync.make(WeightSync), inputs.tokenizer.vocab_size
    engine = RestartingEngine(build_engine(config, ALONE), weight_sync, vocab_size, rollout.max_restarts)
    sampler = build_sampler(config, inputs, engine, build_algorithm(config.algorithm))
    path, length = model_path(config.model.path), config.scale.context_length
    options = ModelOptions.of(config.model, path, context_length=length)
    engine.load_weights(build_policy(options, rollout.temperature), 0)
    return sampler
