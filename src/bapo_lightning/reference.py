"""Algorithm 1 of BAPO (arXiv 2510.18927) in one file: one process, one loop, no framework.

    for each rollout batch                                                          Algorithm 1
        pi_rollout <- pi; sample G responses to P problems; rewards; advantages     lines 2-6
        for each epoch, for each minibatch: one update                              lines 8-20
            r = pi / pi_rollout of every token
            c_low, c_high <- search until positive tokens contribute rho_0 (Eq. 8)
            ascend min(r A, clip(r, c_low, c_high) A) (Eq. 4) with AdamW

    python -m bapo_lightning.reference

`make train` calls the same functions in the same order; `tests/test_reference.py` shows that both end with
the same weights, to the bit. This file leaves out what a lab needs and the algorithm does not: checkpoints,
metrics, other regimes, engines and models, several ranks, and care for non-finite gradients.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import NamedTuple

import torch
from torch.optim import AdamW, Optimizer
from torch.optim.lr_scheduler import LRScheduler
from transformers import AutoTokenizer, PreTrainedTokenizerBase
from transformers.utils.logging import disable_progress_bar

from bapo_lightning.data.batches.batch import TrainBatch, collate
from bapo_lightning.data.batches.replay_queue import ReplayQueue
from bapo_lightning.data.problems.prompts import PlainPrompt, decoded
from bapo_lightning.data.problems.stream import ProblemStream
from bapo_lightning.modules.policy.factory import build_policy
from bapo_lightning.modules.policy.folder import model_path
from bapo_lightning.modules.policy.options import ModelOptions
from bapo_lightning.modules.policy.policy import Policy
from bapo_lightning.modules.schedules import linear_warmup
from bapo_lightning.modules.token_tables import token_table
from bapo_lightning.objectives.advantages.group import group_advantages
from bapo_lightning.objectives.bounds import BoundSearch, bound_grid, contribution_curves, search_bounds
from bapo_lightning.objectives.surrogate import clipped_surrogate
from bapo_lightning.objectives.token_table import TokenTable
from bapo_lightning.objectives.weighting import token_mean
from bapo_lightning.rollout.engine import GenerationRequest, SamplingParams, request_seed
from bapo_lightning.rollout.hf.engine import HFEngine
from bapo_lightning.tiny_worlds.locks.task import lock_problems, opened
from bapo_lightning.types import Completion, Group, Rollout, Sample, WorkItem

# Ships with the package: a model that opens locks with the popular key, and rarely with the right one.
MODEL = model_path("package://bapo_lightning/tiny_worlds/locks/model")


@dataclass(frozen=True)
class Settings:
    """All numbers of a run. The defaults are the quickstart's."""

    seed: int = 0  # of the order of problems, of sampling and of the minibatches
    num_rollout_batches: int = 15  # how often the policy samples
    prompts_per_batch: int = 512  # P, problems in a rollout batch
    group_size: int = 8  # G, responses to a problem
    max_new_tokens: int = 10  # a response is cut here
    temperature: float = 1.0  # of the distribution that is sampled from and trained
    epochs: int = 1  # passes over a rollout batch
    minibatches: int = 32  # updates in a pass; staleness is epochs x minibatches
    micro_batch_tokens: int = 16384  # tokens that pass through the model at once
    target: float = 0.5  # rho_0, least share of positive tokens in the contributions
    low: tuple[float, float, float] = (0.6, 0.9, 0.02)  # a-, b-, delta_2: start, end and step of c_low
    high: tuple[float, float, float] = (1.2, 3.0, 0.05)  # a+, b+, delta_1: start, end and step of c_high
    learning_rate: float = 1.5e-3  # after the warm-up
    betas: tuple[float, float] = (0.9, 0.95)  # of AdamW
    warmup_updates: int = 10  # the learning rate rises linearly over these
    max_grad_norm: float = 1.0  # a longer gradient is scaled down to this norm


class Update(NamedTuple):
    """Results of one update."""

    loss: float
    entropy: float  # nats, mean over the tokens of the minibatch
    share: float  # of positive tokens in the contributions, within the bounds; nan if nothing contributes
    low: float  # c_low
    high: float  # c_high


def train(settings: Settings) -> tuple[Policy, Optimizer, list[Update]]:
    """Trains the tiny model and prints a line for every rollout batch. Returns what the run ends with."""
    tokenizer = AutoTokenizer.from_pretrained(MODEL)
    policy = build_policy(ModelOptions(MODEL, packing="padding_free"), settings.temperature)
    engine = HFEngine(MODEL, device="cpu")  # pi_rollout: a separate model
    stream = ProblemStream(lock_problems("train"), settings.seed)
    queue = ReplayQueue(settings.epochs, settings.minibatches, settings.seed)
    optimizer = AdamW(
        policy.parameters(), settings.learning_rate, settings.betas, weight_decay=0.0, fused=True
    )
    schedule = linear_warmup(optimizer, settings.warmup_updates)
    updates: list[Update] = []
    for _ in range(settings.num_rollout_batches):
        engine.load_weights(policy, version=len(updates))  # pi_rollout <- pi
        groups = sample(settings, engine, tokenizer, stream.take(settings.prompts_per_batch))
        queue.put(groups)
        while len(queue):  # all epochs of shuffled minibatches
            batch = collate(queue.take(), metrics={})
            updates.append(update(settings, policy, optimizer, schedule, batch, len(updates)))
        reward = fmean(reward for group in groups for reward in group.rewards)
        recent = torch.tensor(updates[-settings.epochs * settings.minibatches :])
        _, entropy, share, low, high = recent.nanmean(0).tolist()
        print(
            f"reward {reward:.3f}  entropy {entropy:.3f}  positive share {share:.3f}  "
            f"bounds [{low:.2f}, {high:.2f}]",
            flush=True,
        )
    return policy, optimizer, updates


def sample(
    settings: Settings, engine: HFEngine, tokenizer: PreTrainedTokenizerBase, items: Sequence[WorkItem]
) -> list[Group]:
    """Samples G responses to each of P problems from pi_rollout; a group is the responses to one problem,
    with rewards and with advantages relative to each other (lines 2-6).
    """
    size = settings.group_size
    requests = [
        GenerationRequest(
            PlainPrompt()(tokenizer, item.problem),
            settings.max_new_tokens,
            request_seed(settings.seed, engine.version, item.problem.id, index, item.epoch),
        )
        for item in items
        for index in range(size)
    ]
    generations = engine.generate(requests, SamplingParams(settings.temperature, (tokenizer.eos_token_id,)))
    responses = [list(generation.segment.token_ids) for generation in generations]
    completions = [
        Completion(text, len(response), each.finish)
        for text, response, each in zip(decoded(tokenizer, responses), responses, generations, strict=True)
    ]
    scores = opened([item.problem for item in items for _ in range(size)], completions)
    samples = [
        Sample(Rollout(request.token_ids, (each.segment,), each.finish), completion.text, score, score.value)
        for request, each, completion, score in zip(requests, generations, completions, scores, strict=True)
    ]
    advantages = group_advantages(torch.tensor([score.value for score in scores]).view(-1, size)).tolist()
    return [
        Group(item.problem, tuple(samples[row * size :][:size]), tuple(advantages[row]), item.epoch)
        for row, item in enumerate(items)
    ]


def update(
    settings: Settings,
    policy: Policy,
    optimizer: Optimizer,
    schedule: LRScheduler,
    batch: TrainBatch,
    version: int,
) -> Update:
    """One step of AdamW on the clipped surrogate, within bounds that fit this minibatch (lines 8-20);
    `version` updates were made before.
    """
    weights = token_mean(batch.response_mask, batch.num_tokens)
    micro_batches = batch.split(settings.micro_batch_tokens, weights, policy.layout)
    with torch.no_grad():  # the search needs all tokens of the update before the first gradient
        tables = [token_table(policy, micro_batch, version) for micro_batch in micro_batches]
    bounds = search(settings, tables)
    optimizer.zero_grad()
    losses = []
    for micro_batch in micro_batches:
        table = token_table(policy, micro_batch, version)
        objective = clipped_surrogate(table.ratio, table.advantage, bounds.low, bounds.high)  # Eq. 4
        loss = -(table.weight * objective).sum()
        loss.backward()
        losses.append(loss.detach())
    torch.nn.utils.clip_grad_norm_(policy.parameters(), settings.max_grad_norm)
    optimizer.step()
    schedule.step()
    entropy = torch.cat([table.entropy for table in tables]).mean()
    numbers = (torch.stack(losses).sum(), entropy, bounds.value, bounds.low, bounds.high)
    return Update(*map(float, numbers))


def search(settings: Settings, tables: Sequence[TokenTable]) -> BoundSearch:
    """The paper's while-loop: raises c_high, then c_low, until positive tokens contribute rho_0 (Eq. 8).

    Two curves, the contributions under every c_high and every c_low, hold all that its steps ask.
    """
    lows, highs = bound_grid(*settings.low), bound_grid(*settings.high)
    positive, negative = torch.zeros(len(highs)), torch.zeros(len(lows))
    for table in tables:
        counted = torch.ones_like(table.ratio, dtype=torch.bool)
        weight = table.weight * table.behaviour_logp.exp()  # pi_rollout(y_t), as in Eq. 8
        curves = contribution_curves(table.ratio, table.advantage, counted, weight, lows, highs)
        positive, negative = positive + curves[0], negative + curves[1]
    return search_bounds(positive, negative, lows, highs, settings.target)


if __name__ == "__main__":
    disable_progress_bar()
    torch.set_num_threads(1)  # more only wait for each other in a model this small
    train(Settings())
