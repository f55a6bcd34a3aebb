"""Operations of passes over samples; memory and speed of a rollout engine.

A weight costs 2 operations a token in the forward pass and 4 in the backward pass (Kaplan et al., arXiv
2001.08361, section 2.1: 6 N D). For a sample of s tokens, attention adds 2 s^2 Q a block in the forward pass
(two products of s x s x Q, halved by the causal mask) and twice that in the backward pass (Korthikanti et
al., arXiv 2205.05198, appendix A, without the mask). The head is applied to response tokens only.

Decoding is bounded by reading: a step reads every weight once for all sequences, and each sequence's keys and
values (Pope et al., arXiv 2211.05102, section 2). The size of the cache is counted as in Kwon et al. (arXiv
2309.06180, section 3).
"""

from __future__ import annotations

from dataclasses import dataclass

from bapo_lightning.plan.gpus import Gpu
from bapo_lightning.plan.memory import Amount, product
from bapo_lightning.plan.run_shape import RunShape


@dataclass(frozen=True)
class Work:
    """Operations of one update, all ranks together."""

    tokens: float  # prompts and responses
    search: float  # the forward pass before the bounds are chosen
    update: float  # forward pass, backward pass, and recomputation by checkpointing
    entropy: float  # entropy_rule/measured_delta, on average
    proximal: float  # the trainer's own log-probs of a rollout batch, shared out over its updates
    reference: float  # the same under the run's initial weights


def forward_flops(run: RunShape, response: float) -> float:
    """Returns the operations of one sample with the longest prompt and a response of that length."""
    model, length = run.model, run.prompt_tokens + response
    return blocks_flops(run, length) + 2 * model.head_parameters * response


def blocks_flops(run: RunShape, length: float) -> float:
    """Returns the operations of one sample of that length in the blocks."""
    model = run.model
    return model.num_layers * (2 * model.layer_matmul_parameters * length + 2 * model.query_size * length**2)


def work_of_update(run: RunShape, mean_response: float) -> Work:
    """Returns the operations of an update; the mean length's square stands for the larger mean of squares."""
    samples = run.samples_per_update
    length = run.prompt_tokens + mean_response
    forward = samples * forward_flops(run, mean_response)
    backward = forward if run.lora else 2 * forward  # adapters need no gradients of the large weights
    recomputed = samples * blocks_flops(run, length) if run.checkpointing is True else 0.0
    return Work(
        tokens=samples * length,
        search=forward if run.searches and run.micro_batches(length) > 1 else 0.0,
        update=forward + backward + recomputed,
        entropy=forward / run.measure_entropy_every if run.measure_entropy_every else 0.0,
        proximal=forward / run.epochs if run.recomputes else 0.0,
        reference=forward / run.epochs if run.reference else 0.0,
    )


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
    """Returns the number of tokens that the cache of one copy holds; 0 if the weights alone do not fit."""
    engine, cache = run.engine, engine_memory(run, gpu, working_bytes)[1]
    return int(cache.bytes * engine.tensor_parallel // run.model.kv_bytes_per_token(engine.element_bytes))


def generation(
    run: RunShape, gpu: Gpu, working_bytes: float, mean_response: float, bandwidth_share: float
) -> GenerationTimes:
    """Returns a batch's sampling: ended sequences are replaced at once, the last run to the limit."""
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
