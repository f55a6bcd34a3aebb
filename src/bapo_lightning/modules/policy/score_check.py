"""Proof, when a model is loaded, that a policy scores tokens as the model's own logits do."""

from __future__ import annotations

from array import array

import torch
from torch import Tensor
from transformers import PreTrainedModel

from bapo_lightning.data.batches.model_input import model_input
from bapo_lightning.errors import ConfigError
from bapo_lightning.modules.policy.packing import PACKED_SDPA
from bapo_lightning.modules.policy.policy import Policy
from bapo_lightning.types import FinishReason, Rollout, Segment

# Nats per token. A multiplier of 0.5 in the head of a small random model is 0.44 off.
TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 0.2}
PROMPT, RESPONSES = [1, 2, 3, 4], ([5, 6, 7], [6, 5])


@torch.no_grad()
def check_scores(model: PreTrainedModel) -> None:
    """Scores a few tokens as a policy does, and by the model's own logits.

    A policy multiplies the last hidden states by the head's weights. A head that does more, whatever its
    option is called, gives other numbers; so does, in a row without padding, a model whose tokens meet
    elsewhere than in attention. A kernel that needs a GPU is left out: the head is checked with torch's.

    Args:
        model: model with its weights, on a CPU.

    Raises:
        ConfigError: the numbers differ, or the model does not take the arguments of packing.
    """
    kernel = model.config._attn_implementation
    packed = kernel == PACKED_SDPA
    rollouts = [_rollout(response, model.config.vocab_size) for response in RESPONSES]
    try:
        if kernel not in (PACKED_SDPA, "sdpa", "eager"):
            model.set_attn_implementation("sdpa")
        policy = Policy(model, 1.0, packed)
        # One pass on this rank alone: where several train, the others have no weights yet.
        scored, _ = policy(model_input(rollouts, torch.device("cpu"), policy.layout))
        if packed:
            model.set_attn_implementation("sdpa")
        expected = [_logprobs(model, rollout) for rollout in rollouts]
    except TypeError as error:
        name = type(model).__name__
        reason = f"model.packing=padding_free: {name} does not take its arguments ({error})"
        raise ConfigError([f"{reason}; write model.packing=none"]) from None
    finally:
        if model.config._attn_implementation != kernel:
            model.set_attn_implementation(kernel)
    difference = float((scored.float() - torch.cat(expected)).abs().max())
    if not difference <= TOLERANCE[model.dtype]:
        cause = "with model.packing=padding_free its sequences mix, or its" if packed else "its"
        raise ConfigError(
            [
                f"model.path: token scores of {type(model).__name__} would be {difference:.2g} nats off: "
                f"{cause} head does more than a matrix product; use another model"
            ]
        )


def _rollout(response: list[int], vocab_size: int) -> Rollout:
    prompt, response = ([token % vocab_size for token in tokens] for tokens in (PROMPT, response))
    segment = Segment(array("i", response), array("f", [0.0] * len(response)), 0)
    return Rollout(array("i", prompt), (segment,), FinishReason.STOP)


def _logprobs(model: PreTrainedModel, rollout: Rollout) -> Tensor:
    """Log-probs [T] of the response in nats, by the model's own logits."""
    response = torch.tensor(rollout.response_ids)
    tokens = torch.cat([torch.tensor(rollout.prompt_ids), response])
    logits = model(tokens[None], use_cache=False).logits[0, len(rollout.prompt_ids) - 1 : -1]
    return logits.float().log_softmax(-1).gather(-1, response[:, None])[:, 0]
