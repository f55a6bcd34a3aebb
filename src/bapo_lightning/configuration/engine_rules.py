"""Rules between the rollout engine and the rest of a run."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from bapo_lightning.configuration.run_config import RunConfig
from bapo_lightning.modules.policy.folder import model_path


def engine_problems(config: RunConfig) -> Iterator[str]:
    """An engine that can sample during training where it must, and responses that the model can hold."""
    shares_gpu = getattr(config.rollout.engine.object, "shares_gpu", False)
    if config.staleness.async_generation and shares_gpu:
        yield (
            "regime.async_generation=true with rollout=vllm: inside the training process vLLM shares the "
            "random state, the environment and on a GPU the memory with the update, so the two cannot run "
            "at once; write rollout=vllm_child or rollout=vllm_server"
        )
    options = config.rollout.sampling_engine.options.get("options") or {}
    rank, own = options.get("lora_rank"), config.model.lora.rank if config.model.lora else None
    if rank is not None and rank != own:
        policy = "no model.lora" if own is None else f"model.lora.rank={own}"
        yield (
            f"rollout.engine.options.lora_rank={rank} with {policy}: vLLM takes the policy's adapters; leave "
            "it out, or write null, which merges them into the weights"
        )
    scale = config.scale
    yield from length_problems(
        config.model.path, scale.max_prompt_tokens, scale.max_new_tokens, scale.max_feedback_tokens
    )


def length_problems(
    path: str, max_prompt_tokens: int, max_new_tokens: int, max_feedback_tokens: int
) -> Iterator[str]:
    """Prompt, response and feedback that do not fit into the model's positions. A hub model is left to the
    engine.
    """
    file = Path(model_path(path), "config.json")
    context = max_prompt_tokens + max_feedback_tokens
    try:
        positions = json.loads(file.read_text(encoding="utf-8")).get("max_position_embeddings")
    except (OSError, ValueError):  # named by the rules about the model's folder
        return
    feedback = f" and scale.max_feedback_tokens={max_feedback_tokens}" if max_feedback_tokens else ""
    if positions is not None and context >= positions:
        yield (
            f"scale.max_prompt_tokens={max_prompt_tokens}{feedback} leaves no room for a response: the model "
            f"has {positions} positions; write a smaller number"
        )
    elif positions is not None and context + max_new_tokens > positions:
        yield (
            f"scale.max_prompt_tokens={max_prompt_tokens}{feedback} and scale.max_new_tokens="
            f"{max_new_tokens} make {context + max_new_tokens} tokens, the model has {positions} positions; "
            f"write scale.max_new_tokens={positions - context}"
        )
