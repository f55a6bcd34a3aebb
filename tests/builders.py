"""A small random model and hand-made samples, shared by the tests of several rooms."""

import random
from array import array
from bisect import bisect_right
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import torch
from lightning import Callback
from transformers import LlamaConfig, LlamaForCausalLM

from bapo_lightning.data.batches.batch import collate
from bapo_lightning.modules.algorithm import Algorithm
from bapo_lightning.modules.bapo_module import BapoModule
from bapo_lightning.modules.bound_rules import AdaptiveBounds
from bapo_lightning.modules.policy.policy import Policy
from bapo_lightning.modules.schedules import linear_warmup
from bapo_lightning.objectives.advantages.group import group_advantages
from bapo_lightning.objectives.objective import clip
from bapo_lightning.objectives.token_table import NAMES
from bapo_lightning.objectives.weighting import token_mean
from bapo_lightning.types import FinishReason, Group, Problem, Rollout, Sample, Score, ScoreStatus, Segment

VOCAB_SIZE = 24
PAPER_BOUNDS = {
    "low": {"start": 0.6, "end": 0.9, "step": 0.02},
    "high": {"start": 1.2, "end": 3.0, "step": 0.05},
    "target": 0.4, "kind": "gradient", "order": "upper_first", "measure": "share", "weight": "rollout_prob",
    "scope": "minibatch",
}  # fmt: skip


def model_config():
    return LlamaConfig(  # heads of 32: the smallest that vLLM's CPU kernels take
        vocab_size=VOCAB_SIZE, hidden_size=64, intermediate_size=64, num_hidden_layers=2,
        num_attention_heads=2, max_position_embeddings=64, tie_word_embeddings=True,
    )  # fmt: skip


def random_model(seed=0, scale=6.0):
    """Weights large enough that next-token distributions are far from uniform."""
    torch.manual_seed(seed)
    model = LlamaForCausalLM(model_config()).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" not in name:
                parameter.mul_(scale)
    return model


def random_policy(seed=0, temperature=1.0):
    return Policy(random_model(seed), temperature)


def logprobs(policy, prompt, response):
    (found,) = policy.response_logprobs([rollout(prompt, response, [0.0] * len(response))], token_budget=1)
    return found


def rollout(prompt, response, logprobs, version=0):
    segment = Segment(array("i", response), array("f", logprobs), version)
    return Rollout(array("i", prompt), (segment,), FinishReason.STOP)


def conversation(*parts, replies, finish=FinishReason.STOP):
    """Returns a rollout of policy version 0 whose parts are the token ids of the policy and of the
    environment in alternation; `replies` beyond the environment's parts are of the last turn.
    """
    rollout = Rollout(array("i", [1]))
    for number, ids in enumerate(parts):
        tokens = array("i", ids)
        if number % 2:
            rollout = rollout.answered(replies[number // 2], tokens)
        else:
            segment = Segment(tokens, array("f", [-1.0] * len(tokens)), version=0)
            rollout = replace(rollout, segments=(*rollout.segments, segment))
    return replace(rollout, finish=finish, replies=tuple(replies))


def group(name, rollouts, scores, advantages=()):
    samples = tuple(
        Sample(item, "", Score(score, ScoreStatus.CORRECT if score else ScoreStatus.WRONG), score)
        for item, score in zip(rollouts, scores, strict=True)
    )
    return Group(Problem(name, "", ""), samples, tuple(advantages))


class ReadsAll(Callback):
    needs = frozenset(NAMES)


def stale_batch(policy, num_groups=6, group_size=4, noise=0.4, seed=0, version=0):
    """Random samples of uneven length; behaviour log-probs lie around the policy's, as in replayed data."""
    generator = random.Random(seed)
    groups = []
    for index in range(num_groups):
        rollouts = []
        for _ in range(group_size):
            prompt = [generator.randrange(VOCAB_SIZE) for _ in range(generator.randint(2, 6))]
            response = [generator.randrange(VOCAB_SIZE) for _ in range(generator.randint(1, 20))]
            logp = logprobs(policy, prompt, response)
            noisy = [min(value + generator.gauss(0, noise), 0.0) for value in logp]
            rollouts.append(rollout(prompt, response, noisy, version))
        advantages = [generator.gauss(0, 1) for _ in range(group_size)]
        groups.append(group(f"p{index}", rollouts, [float(value > 0) for value in advantages], advantages))
    metrics = {"rollout/num_samples": 0.0, "rollout/num_tokens": 0.0}
    return collate(groups, metrics)


def adaptive(**changes):
    return AdaptiveBounds(**{**PAPER_BOUNDS, **changes})


def module(policy, bounds, micro_batch_tokens=100_000, **changes):
    parts = {"objective": clip, "weighting": token_mean}
    parts |= {name: changes.pop(name) for name in list(parts) if name in changes}
    options = {
        "optimizer": partial(torch.optim.SGD, lr=0.1), "scheduler": partial(linear_warmup, warmup_updates=1),
        "max_grad_norm": 1e9, "max_age": 8, "max_nonfinite_in_a_row": 3, **changes,
    }  # fmt: skip
    made = BapoModule(
        make_policy=lambda **_: policy,
        algorithm=Algorithm(group_advantages, bounds=bounds, **parts),
        micro_batch_tokens=micro_batch_tokens,
        **options,
    )
    made.configure_model()
    return made


def gradients(policy):
    return torch.cat([each.grad.flatten() for each in policy.parameters() if each.grad is not None])


def step(policy, bounds, batch, **changes):
    """Outputs and gradient of one `training_step`, without a trainer: backward only, no optimizer."""
    made = module(policy, bounds, **changes)
    made.manual_backward = lambda loss: loss.backward()
    made.optimizers = lambda: SimpleNamespace(zero_grad=policy.zero_grad)
    made.apply_gradients = lambda optimizer: 0.0
    made._fabric = None
    made._trainer = SimpleNamespace(global_step=3, callbacks=[ReadsAll()])
    return made.training_step(batch, 0), gradients(policy)


def budget_for(batch, parts):
    """Largest token budget up to 2000 that gives this many micro-batches; a larger one never gives more."""

    def fewness(budget):
        return -len(batch.split(budget, batch.response_mask.float()))

    found = bisect_right(range(1, 2001), -parts, key=fewness)
    assert fewness(found) == -parts
    return found
