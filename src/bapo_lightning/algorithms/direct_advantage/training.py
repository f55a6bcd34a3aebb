"""Training of a critic of steps, once, before the policy: binary cross-entropy of the values of prefixes
against the outcomes of responses (arXiv 2412.18279, Eq. 15).

    response, split into steps --> prefixes that end a step, each with the response's outcome --> StepCritic
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

import lightning as L
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.utilities.types import OptimizerLRScheduler
from torch import Tensor
from torch.utils.data import DataLoader
from torchmetrics import MeanSquaredError
from torchmetrics.classification import BinaryCalibrationError
from transformers import PreTrainedModel

from bapo_lightning.algorithms.direct_advantage.critic import state_inputs, state_logits
from bapo_lightning.algorithms.direct_advantage.steps import StepSplitter, states_of
from bapo_lightning.data.rollouts.running_group import RunningGroup
from bapo_lightning.data.rollouts.sampler import RolloutSampler
from bapo_lightning.rollout.engine import GenerationRequest, request_seed
from bapo_lightning.system.errors import DataError
from bapo_lightning.system.phases import advance, phase
from bapo_lightning.system.values import Count, Positive
from bapo_lightning.types import Problem, Rollout, Sample, Segment, WorkItem

AT_ONCE = 64  # responses whose prefixes are completed in one call of the engine
# (input_ids [B, T], row [S], column [S]) of S prefixes, and their targets [S]
Batch = tuple[tuple[Tensor, Tensor, Tensor], Tensor]


@dataclass(frozen=True, slots=True)
class Example:
    """A response with its states and its outcome."""

    rollout: Rollout
    states: list[int]  # positions of the last tokens of its prefixes
    outcome: float  # in [0, 1]
    targets: list[float]  # of the prefixes: the outcome, or the mean over completions


def examples_of(samples: Sequence[Sample], splitter: StepSplitter) -> list[Example]:
    """Returns examples from scored responses; raises DataError if a score is not in [0, 1]."""
    examples = []
    for sample in samples:
        if not 0 <= sample.score.value <= 1:
            raise DataError(
                f"a critic predicts scores from 0 to 1, and the reward gave {sample.score.value}; write "
                "another reward"
            )
        rollout = sample.rollout
        states = states_of(rollout, splitter(rollout.response_ids))
        outcome = sample.score.value
        examples.append(Example(rollout, states, outcome, [outcome] * len(states)))
    return examples


def with_completions(
    examples: Sequence[Example], problems: Sequence[Problem], sampler: RolloutSampler, count: int
) -> list[Example]:
    """Returns the examples, one for each problem, with targets that are means over all completions of a
    prefix: `count` new ones and its own response.
    """
    rollouts, states = [example.rollout for example in examples], [example.states for example in examples]
    completed = completed_scores(sampler, problems, rollouts, states, count)
    return [
        replace(example, targets=[(example.outcome + sum(scores)) / (1 + count) for scores in state_scores])
        for example, state_scores in zip(examples, completed, strict=True)
    ]


def completed_scores(
    sampler: RolloutSampler,
    problems: Sequence[Problem],
    rollouts: Sequence[Rollout],
    states: Sequence[Sequence[int]],
    count: int,
) -> list[list[list[float]]]:
    """Returns the scores of `count` completions of each state of each rollout, sampled by the weights that
    sampled the rollout; each rollout answers the problem at its place.
    """
    completed: list[list[list[float]]] = []
    with phase("sampling completions", len(rollouts)):
        for first in range(0, len(rollouts), AT_ONCE):
            numbers = range(first, min(first + AT_ONCE, len(rollouts)))
            prefixes = [
                (number, beginning(rollouts[number], state))
                for number in numbers
                for state in states[number]
                for _ in range(count)
            ]
            requests = [
                GenerationRequest(
                    prefix.token_ids,
                    sampler.max_new_tokens - prefix.length,
                    request_seed(sampler.seed, 0, problems[number].id, place, variant=f"completion {first}"),
                    place,
                )
                for place, (number, prefix) in enumerate(prefixes)
            ]
            groups = [RunningGroup(WorkItem(problems[number], 0), [prefix]) for number, prefix in prefixes]
            finished = list(sampler.continued(requests, groups).values())
            samples = iter(sampler.judge([problems[number] for number, _ in prefixes], finished))
            completed += [
                [[next(samples).score.value for _ in range(count)] for _ in states[number]]
                for number in numbers
            ]
            advance(len(numbers))
    return completed


def beginning(rollout: Rollout, state: int) -> Rollout:
    """Returns a response up to a position in prompt and response, as an unfinished rollout."""
    length = state + 1 - len(rollout.prompt_ids)
    if not length:
        return Rollout(rollout.prompt_ids)
    version = rollout.segments[0].version
    segment = Segment(rollout.response_ids[:length], rollout.logprobs[:length], version)
    return Rollout(rollout.prompt_ids, (segment,))


def collated(examples: Sequence[Example]) -> Batch:
    """Returns the prefixes of some responses as tensors."""
    targets = [target for example in examples for target in example.targets]
    inputs = state_inputs([example.rollout for example in examples], [example.states for example in examples])
    return inputs, torch.tensor(targets)


class CriticModule(L.LightningModule):
    """The critic with its optimizer and its errors."""

    def __init__(self, model: PreTrainedModel, learning_rate: float) -> None:
        super().__init__()
        self.model, self.learning_rate = model, learning_rate
        self.brier, self.calibration = MeanSquaredError(), BinaryCalibrationError()

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Returns the mean cross-entropy over the prefixes of some responses."""
        advance()
        inputs, targets = batch
        return torch.nn.functional.binary_cross_entropy_with_logits(
            state_logits(self.model, *inputs), targets
        )

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        """Adds to the errors."""
        inputs, targets = batch
        values = state_logits(self.model, *inputs).sigmoid()
        self.brier.update(values, targets)
        self.calibration.update(values, targets.round().int())
        self.log_dict({"brier": self.brier, "calibration_error": self.calibration}, batch_size=len(targets))

    def configure_optimizers(self) -> OptimizerLRScheduler:
        """AdamW at a constant rate."""
        return torch.optim.AdamW(self.parameters(), lr=self.learning_rate)

    def on_train_epoch_end(self) -> None:
        """Prints the held-out Brier score."""
        brier = float(self.trainer.callback_metrics["brier"])
        print(f"epoch {self.current_epoch + 1}: held-out Brier score {brier:.4f}", flush=True)


def fit_critic(
    model: PreTrainedModel,
    train: Sequence[Example],
    held_out: Sequence[Example],
    learning_rate: Positive,
    epochs: Count,
    batch_size: Count,
    accelerator: str,
    scratch: Path,
) -> dict[str, float]:
    """Trains a critic by AdamW, `batch_size` responses an update. It ends with the weights of the epoch with
    the best Brier score, which `scratch`, an empty folder, keeps meanwhile.

    Returns:
        `brier`, the mean of (value - outcome)^2 over the held-out prefixes; `brier_of_mean`, the same for the
        training responses' mean outcome; `calibration_error`, the mean distance between values and shares of
        right answers in 15 bins; and the number of `prefixes`.
    """
    module = CriticModule(model, learning_rate)
    keeper = ModelCheckpoint(scratch, monitor="brier", save_weights_only=True)
    trainer = L.Trainer(
        accelerator=accelerator,
        devices=1,
        max_epochs=epochs,
        gradient_clip_val=1.0,
        logger=False,
        callbacks=[keeper],
        num_sanity_val_steps=0,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    loader: Any = partial(DataLoader, batch_size=batch_size, collate_fn=collated)
    shuffled, others = loader(list(train), shuffle=True), loader(list(held_out))
    with phase("training the critic", epochs * len(shuffled)):
        trainer.fit(module, shuffled, others)
    best = torch.load(keeper.best_model_path, weights_only=True)
    module.load_state_dict(best["state_dict"])
    mean = fmean(example.outcome for example in train)
    errors = [(mean - example.outcome) ** 2 for example in held_out for _ in example.states]
    measured = trainer.validate(module, others, verbose=False)[0]
    return {**measured, "brier_of_mean": fmean(errors), "prefixes": len(errors)}
