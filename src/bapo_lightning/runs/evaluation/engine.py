"""The engine of an evaluation, with the weights of a checkpoint."""

from __future__ import annotations

import time
from typing import Any

from bapo_lightning.configuration.evaluation_config import EvaluationConfig
from bapo_lightning.data.rollouts.sampler import RolloutSampler
from bapo_lightning.errors import DataError
from bapo_lightning.modules.export.checkpoint_weights import load_checkpoint_weights
from bapo_lightning.modules.policy.factory import build_policy
from bapo_lightning.modules.policy.folder import model_path
from bapo_lightning.modules.policy.options import ModelOptions
from bapo_lightning.modules.policy.policy import Policy
from bapo_lightning.phases import phase
from bapo_lightning.rollout.engine import RolloutEngine, SamplingParams
from bapo_lightning.rollout.recovery import RestartingEngine
from bapo_lightning.runs.conversations import build_conversations, turn_ends
from bapo_lightning.runs.evaluation.task import Task
from bapo_lightning.runs.inputs import stop_token_ids


def make_sampler(config: EvaluationConfig, task: Task, engine: RolloutEngine, reward: Any) -> RolloutSampler:
    """Makes the sampler of an evaluation; its engine has the checkpoint's weights.

    Raises:
        DataError: a model that cannot be loaded.
        CheckpointError: a checkpoint that is not one of its run's model.
        EngineError: the engine did not take the weights.
    """
    rollout = config.rollout
    # Under greedy sampling every log-prob is 0, which would prove nothing.
    temperature = rollout.temperature or 1.0
    weight_sync = rollout.weight_sync.make(temperature=temperature)
    restarting = RestartingEngine(engine, weight_sync, task.tokenizer.vocab_size, rollout.max_restarts)
    policy, start = load_policy(config, task, temperature), time.perf_counter()
    restarting.load_weights(policy, task.subject.version)
    print(f"the engine has the weights after {time.perf_counter() - start:.1f} s", flush=True)
    environment, scale, tokenizer = config.environment, config.scale, task.tokenizer
    ends = stop_token_ids(model_path(config.model.path), tokenizer) + turn_ends(environment, tokenizer)
    limits = scale.max_new_tokens, scale.max_feedback_tokens
    return RolloutSampler(
        engine=restarting,
        tokenizer=tokenizer,
        prompt=task.prompt,
        reward=reward,
        sampling=SamplingParams(rollout.temperature, ends, rollout.top_p, rollout.top_k),
        max_new_tokens=scale.max_new_tokens,
        seed=config.seed,
        conversations=build_conversations(environment, tokenizer, *limits),
    )


@phase("loading the model")
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
