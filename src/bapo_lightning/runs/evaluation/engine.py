"""The engine of an evaluation, with the weights of a checkpoint."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from bapo_lightning.configuration.evaluation_config import EvaluationConfig
from bapo_lightning.data.rollouts.sampler import RolloutSampler
from bapo_lightning.errors import DataError
from bapo_lightning.modules.export.checkpoint_weights import load_checkpoint_weights
from bapo_lightning.modules.policy.factory import build_policy
from bapo_lightning.modules.policy.folder import model_path
from bapo_lightning.modules.policy.options import ModelOptions
from bapo_lightning.modules.policy.policy import Policy
from bapo_lightning.rollout.engine import (
    EngineDied,
    Generation,
    GenerationRequest,
    RolloutEngine,
    SamplingParams,
)
from bapo_lightning.rollout.recovery import EngineRecovery, generate_all
from bapo_lightning.runs.evaluation.task import Task
from bapo_lightning.runs.inputs import stop_token_ids


class WeightedEngine:
    """The engine with the checkpoint's weights, again after every restart of its process."""

    def __init__(self, config: EvaluationConfig, task: Task, sampler: RolloutSampler) -> None:
        """Loads the weights and proves that the engine has them. Raises EngineError when it has not."""
        self._sampler = sampler
        # Under greedy sampling every log-prob is 0, which would prove nothing.
        temperature = config.rollout.temperature or 1.0
        self._sync = config.rollout.weight_sync.make(temperature=temperature)
        self._recovery = EngineRecovery(config.rollout.max_restarts)
        self._policy = load_policy(config, task, temperature)
        self._version = task.subject.version
        start = time.perf_counter()
        self._load()
        print(f"the engine has the weights after {time.perf_counter() - start:.1f} s", flush=True)

    def __call__(self, requests: Sequence[GenerationRequest]) -> list[Generation]:
        """Sample, if need be across deaths of the engine."""
        return generate_all(self._sampler.engine, requests, self._sampler.sampling, self._revive)

    def _revive(self, death: EngineDied) -> None:
        self._recovery.restart(self._sampler.engine, death)
        self._load()

    def _load(self) -> None:
        while True:
            try:
                self._sync.push(
                    self._policy, self._sampler.engine, self._version, self._sampler.tokenizer.vocab_size
                )
                return
            except EngineDied as death:
                self._recovery.restart(self._sampler.engine, death)


def make_sampler(config: EvaluationConfig, task: Task, engine: RolloutEngine, reward: Any) -> RolloutSampler:
    """Samples and judges with the settings of the evaluation."""
    rollout = config.rollout
    stops = stop_token_ids(model_path(config.model.path), task.tokenizer)
    return RolloutSampler(
        engine=engine,
        tokenizer=task.tokenizer,
        prompt=task.prompt,
        reward=reward,
        sampling=SamplingParams(rollout.temperature, stops, rollout.top_p, rollout.top_k),
        max_new_tokens=config.scale.max_new_tokens,
        seed=config.seed,
    )


def load_policy(config: EvaluationConfig, task: Task, temperature: float) -> Policy:
    """The policy that is evaluated, on the CPU.

    Raises:
        DataError: a model that cannot be loaded.
        CheckpointError: a checkpoint that is not one of its run's model.
    """
    try:
        policy = build_policy(ModelOptions.of(config.model, model_path(config.model.path)), temperature)
    except (OSError, ValueError) as error:
        raise DataError(
            f"{config.model.path} could not be loaded ({str(error).splitlines()[0]}); save or fetch it again"
        ) from None
    if task.subject.checkpoint is not None:
        load_checkpoint_weights(policy, task.subject.checkpoint.path)
    return policy
