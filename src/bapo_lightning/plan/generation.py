"""Memory and speed of a rollout engine. Decoding is bounded by reading weights and cache.

A step reads every weight once for all sequences, and each sequence's keys and values (Pope et al., arXiv
2211.05102, section 2). The size of the cache is counted as in Kwon et al. (arXiv 2309.06180, section 3).
"""

from __future__ import annotations

from dataclasses import dataclass

from bapo_lightning.plan.gpus import Gpu
from bapo_lightning.plan.memory import Amount, product
from bapo_lightning.plan.run_shape import RunShape


@dataclass(frozen=True)
class GenerationTimes:
    """Sampling of one rollout batch, per copy of the model in the engine."""

    num_samples: int
    concurrent: int  # sequences in one step
    steps: float
    step_seconds: float

    @property
    def seconds(self) -> float:
        """Time for all samples."""
        return self.steps * self.step_seconds


def engine_memory(run: RunShape, gpu: Gpu, working_bytes: float) -> list[Amount]:
    """Returns the engine's memory on one GPU: weights, key-value cache, activations."""
    engine, model = run.engine, run.model
    over, size = engine.tensor_parallel, engine.element_bytes
    weights = product("weights in the engine", over, B=size, parameters=model.num_parameters)
    if engine.memory_share is None:
        per_token, sequences = model.kv_bytes_per_token(size), engine.max_sequences
        cache = product("key-value cache", over, B=per_token, sequences=sequences, tokens=run.longest)
        return [weights, cache]
    rest = max(0.0, engine.memory_share * gpu.memory_bytes - weights.bytes - working_bytes)
    arithmetic = f"{engine.memory_share} x {gpu.memory_bytes / 1e9:g} GB less the other two"
    return [
        weights,
        Amount("key-value cache", rest, arithmetic),
        Amount("engine's activations and graphs", working_bytes, "assumed"),
    ]


def cache_tokens(run: RunShape, gpu: Gpu, working_bytes: float) -> int:
    """Returns the tokens that the cache of one copy holds; 0 if the weights alone do not fit."""
    engine, cache = run.engine, engine_memory(run, gpu, working_bytes)[1]
    return int(cache.bytes * engine.tensor_parallel // run.model.kv_bytes_per_token(engine.element_bytes))


def generation(
    run: RunShape, gpu: Gpu, working_bytes: float, mean_response: float, bandwidth_share: float
) -> GenerationTimes:
    """Returns the sampling of a rollout batch at a steady state: a finished sequence is replaced at once, but
    the last ones run alone to the limit.
    """
    engine, model = run.engine, run.model
    num_samples = -(-run.prompts_per_batch * run.group_size // engine.num_copies)
    mean_context = run.prompt_tokens + mean_response / 2
    fitting = int(cache_tokens(run, gpu, working_bytes) // mean_context)
    concurrent = max(1, min(num_samples, engine.max_sequences, fitting))
    cached = concurrent * mean_context * model.kv_bytes_per_token(engine.element_bytes)
    read = model.num_parameters * engine.element_bytes + cached
    steps = max(num_samples * mean_response / concurrent, float(run.response_tokens))
    step_seconds = read / (engine.tensor_parallel * gpu.bytes_per_second * bandwidth_share)
    return GenerationTimes(num_samples, concurrent, steps, step_seconds)
