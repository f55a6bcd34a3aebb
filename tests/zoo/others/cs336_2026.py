"""In the place of `tests/adapters.py` of Stanford's CS336, assignment 5, in 2026: their names, our code.

Their train step is made of our policy, which scores response tokens alone, our advantages, objectives and
weights. Shapes: B responses, T tokens of the longest prompt and response but one.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Callable, Sequence
from typing import Any

import torch
import transformers
from ours import NotHere, bounded, not_here, table, token_losses
from torch import Tensor

from bapo_lightning.algorithms.gspo import gspo
from bapo_lightning.algorithms.maxrl import maxrl
from bapo_lightning.data.batches.model_input import model_input
from bapo_lightning.modules.policy.policy import Policy
from bapo_lightning.objectives.advantages.group import group_advantages
from bapo_lightning.objectives.objective import clip
from bapo_lightning.objectives.reinforce import reinforce
from bapo_lightning.objectives.weighting import fixed_length, sequence_mean
from bapo_lightning.types import FinishReason, Rollout, Segment

# Sum of the absolute weights that transformers 5.7.0, theirs, draws for the model of the train steps. Later
# versions draw others, and what the steps are compared with is none of theirs.
DRAWN = 36.451776
OBJECTIVES = {"none": reinforce, "noclip": clip, "grpo": clip, "gspo": gspo}


def run_tokenize_prompt_and_output(
    prompt_strs: Sequence[str], output_strs: Sequence[str], tokenizer: Any
) -> dict[str, Tensor]:
    """Returns inputs, labels and the mask of labels that are response tokens, [B, T], of our padded rows."""
    rollouts = [_rollout(*texts, tokenizer) for texts in zip(prompt_strs, output_strs, strict=True)]
    inputs = model_input(rollouts, torch.device("cpu"))
    ids, mask = inputs.input_ids, torch.zeros(inputs.input_ids.shape, dtype=torch.bool)
    mask.view(-1)[inputs.index] = True  # the cells that predict a response token
    return {"input_ids": ids[:, :-1], "labels": ids[:, 1:], "response_mask": mask[:, :-1]}


def run_get_response_log_probs(
    model: Any, input_ids: Tensor, labels: Tensor, return_token_entropy: bool
) -> dict[str, Tensor]:
    """Returns log-probs and entropies of all labels, [B, T]: rows with one token before their response."""
    whole = torch.cat([input_ids, labels[:, -1:]], 1)
    rollouts = [_of_ids(row[:1], row[1:]) for row in whole.tolist()]
    logp, entropy, *_ = Policy(model, 1.0)(model_input(rollouts, torch.device("cpu")))
    return {"log_probs": logp.view_as(labels), "token_entropy": entropy.view_as(labels)}


def run_compute_rollout_rewards(
    reward_fn: Callable[[str, str], dict[str, float]],
    rollout_responses: Sequence[str],
    repeated_ground_truths: Sequence[str],
) -> tuple[Tensor, dict[str, float]]:
    """Returns the rewards of responses, [B]; nothing of it is ours."""
    pairs = zip(rollout_responses, repeated_ground_truths, strict=True)
    return torch.tensor([reward_fn(*pair)["reward"] for pair in pairs]), {}


def run_compute_group_normalized_rewards(
    raw_rewards: Tensor,
    group_size: int,
    baseline: str = "mean",
    advantage_eps: float = 1e-6,
    advantage_normalizer: str = "std",
) -> tuple[Tensor, dict[str, float]]:
    """Returns advantages, [B]; without a baseline they are the rewards."""
    rewards = raw_rewards.view(-1, group_size)
    if baseline == "none":
        return raw_rewards, {}
    if advantage_normalizer == "mean":
        return maxrl(rewards, advantage_eps).flatten(), {}
    return group_advantages(rewards, scale=advantage_normalizer, eps=advantage_eps).flatten(), {}


def run_compute_policy_gradient_loss(
    raw_rewards_or_advantages: Tensor,
    policy_log_probs: Tensor,
    importance_reweighting_method: str = "none",
    old_log_probs: Tensor | None = None,
    cliprange: float | None = None,
    response_mask: Tensor | None = None,
) -> tuple[Tensor, dict[str, Tensor]]:
    """Returns the loss of each token, [B, T]."""
    old = torch.zeros_like(policy_log_probs) if old_log_probs is None else old_log_probs
    advantage = raw_rewards_or_advantages.view(-1, 1)
    tokens = bounded(table(policy_log_probs, old, advantage, response_mask))
    if importance_reweighting_method in ("grpo", "gspo") and cliprange is not None:
        tokens = bounded(tokens, 1 - cliprange, 1 + cliprange)
    objective = OBJECTIVES[importance_reweighting_method]
    return token_losses(objective, tokens, policy_log_probs), {}


def run_aggregate_loss_across_microbatch(
    per_token_policy_gradient_loss: Tensor,
    mask: Tensor,
    loss_normalization: str = "sequence",
    normalization_constant: int | None = None,
    parts: int = 1,
) -> Tensor:
    """Returns the loss of a micro-batch, 0-dim, which is one of as many equal parts; of the whole batch the
    constant is.
    """
    if loss_normalization == "sequence":
        weights = sequence_mean(mask, len(mask) * parts)
    else:
        weights = fixed_length(mask, 1, normalization_constant or 0)
    return (weights * per_token_policy_gradient_loss).sum()


def run_grpo_train_step(
    model: Any,
    tokenizer: Any,
    optimizer: torch.optim.Optimizer,
    gradient_accumulation_steps: int,
    max_grad_norm: float | None,
    reward_fn: Callable[[str, str], dict[str, float]],
    repeated_prompts: Sequence[str],
    rollout_responses: Sequence[str],
    repeated_ground_truths: Sequence[str],
    group_size: int,
    importance_reweighting_method: str = "none",
    old_log_probs: Tensor | None = None,
    cliprange: float | None = None,
    loss_normalization: str = "sequence",
    normalization_constant: int | None = None,
    **of_the_advantages: Any,
) -> tuple[Tensor, dict[str, float]]:
    """Returns the loss of an update that is made in micro-batches of equal numbers of responses."""
    if abs(sum(float(each.detach().abs().sum()) for each in model.parameters()) - DRAWN) > 1e-4:
        not_here(f"transformers {transformers.__version__} draws another model than theirs, 5.7.0")
    rewards, _ = run_compute_rollout_rewards(reward_fn, rollout_responses, repeated_ground_truths)
    advantages, _ = run_compute_group_normalized_rewards(rewards, group_size, **of_the_advantages)
    batch = run_tokenize_prompt_and_output(repeated_prompts, rollout_responses, tokenizer)
    loss = torch.zeros(())
    for rows in torch.arange(len(rewards)).chunk(gradient_accumulation_steps):
        inputs, labels, mask = (column[rows] for column in batch.values())
        logp = run_get_response_log_probs(model, inputs, labels, False)["log_probs"]
        losses, _ = run_compute_policy_gradient_loss(
            advantages[rows],
            logp,
            importance_reweighting_method,
            None if old_log_probs is None else old_log_probs[rows],
            cliprange,
            mask,
        )
        part = run_aggregate_loss_across_microbatch(
            losses, mask, loss_normalization, normalization_constant, gradient_accumulation_steps
        )
        part.backward()
        loss += part.detach()
    if max_grad_norm is not None:
        torch.nn.utils.clip_grad_norm_(model.parameters(), max_grad_norm)
    optimizer.step()
    optimizer.zero_grad()
    return loss, {}


def _rollout(prompt: str, response: str, tokenizer: Any) -> Rollout:
    return _of_ids(tokenizer.encode(prompt), tokenizer.encode(response))


def _of_ids(prompt: Sequence[int], response: Sequence[int]) -> Rollout:
    segment = Segment(array("i", response), array("f", [0.0] * len(response)), 0)
    return Rollout(array("i", prompt), (segment,), FinishReason.STOP)


def __getattr__(name: str) -> NotHere:
    if name.startswith(("run_", "get_")):
        return NotHere("supervised and preference training are not here")
    raise AttributeError(name)


sys.modules["tests.adapters"] = sys.modules[__name__]
