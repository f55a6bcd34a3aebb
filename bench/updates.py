"""One update of training without a trainer, on minibatches of any size: what several benches measure."""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from typing import Any

import numpy as np
from lightning import Callback

from bapo_lightning.configuration.compose import compose_run
from bapo_lightning.configuration.run_config import RunConfig
from bapo_lightning.configuration.validate import validate
from bapo_lightning.data.batches.batch import TrainBatch, collate
from bapo_lightning.modules.bapo_module import BapoModule
from bapo_lightning.objectives.token_table import NAMES
from bapo_lightning.runs.build import build_module
from bapo_lightning.types import FinishReason, Group, Problem, Rollout, Sample, Score, ScoreStatus, Segment


class ReadsAll(Callback):
    needs = NAMES


class Attached:
    """The few services of a trainer that one update needs."""

    global_step = 0
    callbacks = (ReadsAll(),)


@dataclass(frozen=True)
class Size:
    groups: int = 16
    group_size: int = 8
    prompt_tokens: int = 16
    response_tokens: int = 48

    @property
    def tokens(self) -> int:
        return self.groups * self.group_size * (self.prompt_tokens + self.response_tokens)


def additions(algorithm: str, *overrides: str, folder: str = "unused") -> RunConfig:
    return validate(
        compose_run(["experiment=additions", f"algorithm={algorithm}", f"run_folder={folder}", *overrides])
    )


def built(config: RunConfig) -> BapoModule:
    return attach(build_module(config, config.strategy.make()))


def attach(module: BapoModule) -> BapoModule:
    """Makes the model and its optimizer, so that the module can be stepped without a trainer."""
    module.configure_model()
    optimizers: Any = module.configure_optimizers()
    module.optimizers = lambda: optimizers["optimizer"]  # type: ignore[method-assign]
    module.lr_schedulers = lambda: optimizers["lr_scheduler"]["scheduler"]  # type: ignore[method-assign]
    module.manual_backward = lambda loss: loss.backward()  # type: ignore[assignment, method-assign]
    module._trainer = Attached()  # type: ignore[assignment]
    return module


def random_batch(size: Size, vocab_size: int) -> TrainBatch:
    return collate(random_groups(size, vocab_size), {})


def random_groups(size: Size, vocab_size: int) -> list[Group]:
    """Returns groups of random tokens: responses of one length, half of the samples with a positive
    advantage.
    """
    generator = np.random.default_rng(0)

    def tokens(count: int) -> array[int]:
        return array("i", generator.integers(vocab_size, size=count).tolist())

    groups = []
    for number in range(size.groups):
        problem, prompt = Problem(id=str(number), prompt="", answer=""), tokens(size.prompt_tokens)
        samples = []
        for _ in range(size.group_size):
            logprobs = array("f", [-float(np.log(vocab_size))]) * size.response_tokens
            rollout = Rollout(
                prompt, (Segment(tokens(size.response_tokens), logprobs, version=0),), FinishReason.LENGTH
            )
            samples.append(Sample(rollout, "", Score(0.0, ScoreStatus.WRONG), reward=0.0))
        advantages = tuple(1.0 if place % 2 else -1.0 for place in range(size.group_size))
        groups.append(Group(problem, tuple(samples), advantages))
    return groups
