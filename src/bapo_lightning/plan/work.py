"""Floating-point operations of passes over samples.

A weight costs 2 operations a token in the forward pass and 4 in the backward pass (Kaplan et al., arXiv
2001.08361, section 2.1: 6 N D). For a sample of s tokens, attention adds 2 s^2 Q a block in the forward pass
(two products of s x s x Q, halved by the causal mask) and twice that in the backward pass (Korthikanti et
al., arXiv 2205.05198, appendix A, without the mask). The head is applied to response tokens only.
"""

from __future__ import annotations

from dataclasses import dataclass

from bapo_lightning.plan.run_shape import RunShape


@dataclass(frozen=True)
class Work:
    """Operations of one update, all ranks together."""

    tokens: float  # prompts and responses
    response_tokens: float
    search: float  # the forward pass before the bounds are chosen
    update: float  # forward pass, backward pass, and recomputation by checkpointing
    entropy: float  # entropy_rule/measured_delta, on average
    proximal: float  # the trainer's own log-probs of a rollout batch, shared out over its updates
    reference: float  # the same under the weights that the run began with


def forward_flops(run: RunShape, response: float) -> float:
    """Returns the operations of one sample with the longest prompt and a response of that length."""
    model, length = run.model, run.prompt_tokens + response
    return blocks_flops(run, length) + 2 * model.head_parameters * response


def blocks_flops(run: RunShape, length: float) -> float:
    """Returns the operations of one sample of that length in the blocks."""
    model = run.model
    return model.num_layers * (2 * model.layer_matmul_parameters * length + 2 * model.query_size * length**2)


def work_of_update(run: RunShape, mean_response: float) -> Work:
    """Returns the operations of one update on samples of this mean length. The square of the mean stands for
    the mean of squares, which is larger.
    """
    samples = run.samples_per_update
    length = run.prompt_tokens + mean_response
    forward = samples * forward_flops(run, mean_response)
    backward = forward if run.lora else 2 * forward  # adapters spare the gradients of the large weights
    again = samples * blocks_flops(run, length) if run.checkpointing else 0.0
    return Work(
        tokens=samples * length,
        response_tokens=samples * mean_response,
        search=forward if run.searches and run.micro_batches(length) > 1 else 0.0,
        update=forward + backward + again,
        entropy=forward / run.measure_entropy_every if run.measure_entropy_every else 0.0,
        proximal=forward / run.epochs if run.recomputes else 0.0,
        reference=forward / run.epochs if run.reference else 0.0,
    )
