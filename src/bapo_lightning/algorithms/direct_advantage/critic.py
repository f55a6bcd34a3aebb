"""A critic of steps: a causal language model with a scalar head that predicts the probability that a prefix
ends in a right answer.

It is trained before the policy (`make critic`) and then frozen (arXiv 2412.18279, Section 3.2).
"""

from __future__ import annotations

import json
import time
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from inspect import isclass
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForTokenClassification, PreTrainedModel

from bapo_lightning.algorithms.direct_advantage.steps import Split, StepSplitter, states_of, step_advantages
from bapo_lightning.data.batches.model_input import padded_ids, rows_by_token_budget
from bapo_lightning.data.rollouts.rules import GroupRule
from bapo_lightning.data.rollouts.stages import BatchStage, EnteringBatch, StageTools
from bapo_lightning.data.run_facts import RunFacts
from bapo_lightning.modules.policy.folder import model_path
from bapo_lightning.system.errors import ConfigError, DataError, first_line
from bapo_lightning.system.phases import phase
from bapo_lightning.system.pretrained import fix_rope, load_whole, read_model_config
from bapo_lightning.types import Group, Rollout, Steps

CRITIC_KEY = "step_critic"  # of config.json, in the folder of a critic


class StepCritic(BatchStage):
    """The critic in a folder, loaded at first use. It gives each step of the fresh samples its advantage, and
    each sample the sum of these.
    """

    gives_advantages = "to all"

    def __init__(self, critic: str | None = None) -> None:
        self._folder = model_path(str(critic))

    @staticmethod
    def run_problems(options: Mapping[str, Any], run: RunFacts) -> Iterator[str]:
        """Yields a message if an environment answers, or if rewards are shaped, which a critic cannot see."""
        if run.environment is not None:
            yield (
                f" with environment={run.environment}: a critic values steps of responses without "
                "replies; write environment=none, or another algorithm"
            )
        for name, part in run.parts.items():
            if isclass(part) and issubclass(part, GroupRule) and part.has("shape"):
                yield (
                    " gives every step its own advantage, by the verifier's scores, and algorithm."
                    f"{name} changes rewards; leave one of the two out"
                )

    @staticmethod
    def machine_problems(options: Mapping[str, Any], run: RunFacts) -> Iterator[str]:
        """Yields why the folder does not hold a critic, or not a critic for this model."""
        path, make = options["critic"], f"make critic EXP={run.experiment} TO=FOLDER"
        if path is None:
            yield f" needs a critic that is trained first: {make}; then write critic=FOLDER"
        elif not (Path(model_path(path)) / "config.json").is_file():
            yield f"critic={path} is not a model folder; make one: {make}"
        elif CRITIC_KEY not in _config(path):
            yield f"critic={path} is a model, but not a critic of steps; make one: {make}"
        elif Path(model_path(run.model), "config.json").is_file():
            sizes = [_config(each).get("vocab_size") for each in (path, run.model)]
            if sizes[0] != sizes[1]:
                yield (
                    f"critic={path} was made of another model, with {sizes[0]} tokens; model.path="
                    f"{run.model} has {sizes[1]}; make one: {make}"
                )

    @property
    def split(self) -> Split:
        """Split of the responses that it was trained on."""
        split: Split = _config(self._folder)[CRITIC_KEY]["split"]
        return split

    def __call__(self, batch: EnteringBatch, tools: StageTools) -> dict[str, float]:
        """Adds steps, and gives samples the sum of their advantages; returns `critic/value`, `critic/brier`
        (both absent if no group is trained on) and `time/critic_seconds`.
        """
        budget, sampler = tools.owner.micro_batch_tokens, tools.sampler
        splitter = StepSplitter(sampler.tokenizer, self.split, sampler.ends)
        batch.fresh, metrics = with_step_advantages(
            self, batch.fresh, splitter, tools.admits, budget, tools.device()
        )
        return metrics

    @cached_property
    def _model(self) -> PreTrainedModel:
        model: PreTrainedModel = load_whole(AutoModelForTokenClassification, self._folder, dtype="auto")
        return model.eval().requires_grad_(False)

    @torch.no_grad()
    def values(
        self,
        rollouts: Sequence[Rollout],
        states: Sequence[Sequence[int]],
        token_budget: int,
        device: torch.device,
    ) -> list[list[float]]:
        """Returns the expected outcome at each state of each rollout; a state is the position, in prompt and
        response, of a prefix's last token. `token_budget` padded tokens pass through the model at once.
        """
        model = self._model.to(device)  # type: ignore[arg-type]
        lengths = [len(rollout.prompt_ids) + rollout.length for rollout in rollouts]
        by_row: dict[int, list[float]] = {}
        for rows in rows_by_token_budget(lengths, token_budget):
            wanted = [states[row] for row in rows]
            inputs = state_inputs([rollouts[row] for row in rows], wanted)
            values = state_logits(model, *(tensor.to(device) for tensor in inputs)).sigmoid().cpu()
            parts = values.split(list(map(len, wanted)))
            by_row |= {row: part.tolist() for row, part in zip(rows, parts, strict=True)}
        return [by_row[row] for row in range(len(rollouts))]


@phase("valuing steps")
def with_step_advantages(
    critic: StepCritic,
    groups: Sequence[Group],
    splitter: StepSplitter,
    admits: Callable[[Group], bool],
    token_budget: int,
    device: torch.device,
) -> tuple[list[Group], dict[str, float]]:
    """Gives each step of the samples its advantage, and each sample the sum of these. Groups that only fill a
    batch and are not trained on stay as they are.

    Returns the groups, and the metrics `critic/value`, `critic/brier` (both absent if no group is trained on)
    and `time/critic_seconds`.
    """
    start = time.perf_counter()
    samples = [sample for group in groups if admits(group) for sample in group.samples]
    numbers = [splitter(sample.rollout.response_ids) for sample in samples]
    rollouts = [sample.rollout for sample in samples]
    states = [states_of(*pair) for pair in zip(rollouts, numbers, strict=True)]
    values = critic.values(rollouts, states, token_budget, device)
    steps = zip(numbers, values, strict=True)
    valued = [_valued(group, steps) if admits(group) else group for group in groups]
    measured = {"time/critic_seconds": time.perf_counter() - start}
    if samples:
        errors = [
            (value - sample.score.value) ** 2
            for sample, expected in zip(samples, values, strict=True)
            for value in expected
        ]
        measured |= {"critic/value": fmean(expected[0] for expected in values), "critic/brier": fmean(errors)}
    return valued, measured


def _valued(group: Group, steps: Iterator[tuple[array[int], Sequence[float]]]) -> Group:
    """`steps`: step numbers and values of this group's samples, and of those after it."""
    samples, sums = [], []
    for sample in group.samples:
        numbers, values = next(steps)
        advantages = step_advantages(values, sample.score.value)
        each = array("f", [advantages[number] for number in numbers])
        samples.append(replace(sample, steps=Steps(numbers, each)))
        sums.append(sum(advantages))
    return replace(group, samples=tuple(samples), advantages=tuple(sums))


def state_inputs(
    rollouts: Sequence[Rollout], states: Sequence[Sequence[int]]
) -> tuple[Tensor, Tensor, Tensor]:
    """Returns token ids [B, T], padded on the right, and row and column of each of S states, [S] each."""
    rows = [row for row, places in enumerate(states) for _ in places]
    columns = [column for places in states for column in places]
    return torch.from_numpy(padded_ids(rollouts)), torch.tensor(rows), torch.tensor(columns)


def state_logits(model: PreTrainedModel, input_ids: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """Returns the logits of the values at S states, [S], float32; padding is on the right and never read."""
    logits = model(input_ids=input_ids, use_cache=False).logits
    return logits[rows, columns].squeeze(-1).float()


def build_critic(path: str, dtype: str, record: dict[str, Any]) -> PreTrainedModel:
    """Returns a critic with the weights of a causal language model and a new head, without dropout. The
    `record` is written into its configuration; its `split` defines the ends of steps.

    Raises:
        ConfigError: the model's family has no such head in transformers.
        DataError: some of the model's weights are missing.
    """
    config = read_model_config(path)
    config.num_labels = 1
    fix_rope(config, path)
    config.classifier_dropout = 0.0
    setattr(config, CRITIC_KEY, record)
    try:
        model: PreTrainedModel = load_whole(
            AutoModelForTokenClassification, path, False, config=config, dtype=getattr(torch, dtype)
        )
    except DataError:
        raise
    except ValueError as error:
        reason = first_line(error)
        raise ConfigError([f"model.path={path} cannot become a critic ({reason}); use another"]) from None
    return model


def _config(path: str) -> dict[str, Any]:
    config: dict[str, Any] = json.loads(Path(model_path(path), "config.json").read_text(encoding="utf-8"))
    return config
