"""Training in an exact world: the same objectives, bound rules and optimizer, many seeds in step.

    for each rollout batch                     sampled `lag` batches before it is trained on
        for each epoch, for each minibatch     one update of every seed:
            token_table                        r of every token
            bound_rule.choose                  c_low, c_high, for each seed its own
            objective                          Eq. 4
            AdamW

A seed is a row of every tensor; `torch.vmap` runs the functions of one seed over the rows. What a seed draws
depends on its number alone, so that methods can be compared in pairs.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from bapo_lightning.data.rollouts.stages import BatchAdvantageStage
from bapo_lightning.modules.algorithm import Algorithm
from bapo_lightning.modules.bound_rules import AdaptiveBounds, BoundRule, searches_each_micro_batch
from bapo_lightning.objectives.bounds import BoundSearch, positive_shares
from bapo_lightning.objectives.objective import (
    Objective,
    needs_candidates,
    needs_of,
    prepares,
    remembers,
    scores_at_entry,
    token_loss,
    with_slopes,
)
from bapo_lightning.objectives.surrogate import clipped_fractions
from bapo_lightning.objectives.token_table import TokenTable, concatenate
from studies.exact.samples import Answers, draw, token_table
from studies.exact.world import ExactWorld

SAME_BOUND = 1e-6  # bounds that differ by less are the same: finished runs store decimal numbers
NORM_EPS = 1e-6  # as in torch.nn.utils.clip_grad_norm_
Past = tuple[Tensor, Tensor]  # what bound rule and objective know of the updates before


def first_past(algorithm: Algorithm) -> Past:
    """Memory of bound rule and objective before the first update."""
    rule, objective = algorithm.bounds, algorithm.objective
    return (
        rule.past if isinstance(rule, AdaptiveBounds) else torch.empty(0),
        objective.past if remembers(objective) else torch.empty(0),
    )


@dataclass(frozen=True)
class Protocol:
    """Settings shared by all methods that are compared."""

    optimizer: Callable[[Sequence[Tensor]], Optimizer]
    scheduler: Callable[[Optimizer], LRScheduler]
    max_grad_norm: float
    num_updates: int = 480
    problems_per_update: int = 16
    group_size: int = 8
    minibatches: int = 4  # of a rollout batch
    epochs: int = 2  # passes over a rollout batch
    lag: int = 0  # rollout batches between sampling and training, as in an asynchronous run
    micro_batches: int = 1  # of an update; they matter to bounds of scope `microbatch` alone
    measure_every: int = 8  # updates


@dataclass(frozen=True)
class Course:
    """How training went, each [S, measurements]; all but the first five are means over the updates since the
    measurement before.
    """

    reward: Tensor  # exact
    entropy: Tensor  # exact, nats per decision
    pass_at_k: Tensor  # exact, k = 8
    key_probability: Tensor  # exact
    worst_quarter: Tensor  # exact reward of the worst quarter of the contexts
    low: Tensor
    high: Tensor
    target_met: Tensor
    rests: Tensor  # share of the searches that stay where they start; NaN for bounds that are not searched
    ends: Tensor  # share of the searches that run to their end
    positive_share: Tensor  # at the bounds
    positive_share_unclipped: Tensor
    clip_fraction: Tensor
    clip_fraction_positive: Tensor
    clip_fraction_negative: Tensor
    grad_norm: Tensor  # before clipping


def train(world: ExactWorld, method: Algorithm, protocol: Protocol, seeds: Sequence[int]) -> Course:
    generators = [torch.Generator().manual_seed(seed) for seed in seeds]
    parameters = world.prior.expand(len(seeds), *world.prior.shape).clone().requires_grad_()
    optimizer = protocol.optimizer([parameters])
    schedule = protocol.scheduler(optimizer)
    problems = Problems(world.num_contexts, generators)
    policies = deque([(0, parameters.detach().clone())], maxlen=protocol.lag + 1)
    searched, seen = first_past(method)
    past: Past = torch.stack([searched] * len(seeds)), torch.stack([seen] * len(seeds))
    measured: list[tuple[Tensor, ...]] = []
    rows: list[tuple[Tensor, ...]] = []
    stages = [stage for stage in method.stages.values() if isinstance(stage, BatchAdvantageStage)]
    batch_advantages = [
        deepcopy(stage.advantages) for _ in seeds for stage in stages[:1]
    ]  # with own memories
    num_updates = 0
    while num_updates < protocol.num_updates:
        contexts = problems.take(protocol.problems_per_update * protocol.minibatches)
        version, behaviour = policies[0]
        group_size, advantages = protocol.group_size, method.advantages
        answers = draw(
            world, behaviour, version, contexts, group_size, advantages, generators, batch_advantages
        )
        for minibatch in shuffled(answers, protocol, generators):
            metrics, past = update(
                world, method, protocol, parameters, policies[-1][1], past, minibatch, optimizer, num_updates
            )
            measured.append(metrics)
            schedule.step()
            num_updates += 1
            if num_updates % protocol.measure_every == 0:
                rows.append(exact(world, parameters) + means(measured))
                measured = []
        policies.append((num_updates, parameters.detach().clone()))
    return Course(*(torch.stack(column, 1) for column in zip(*rows, strict=True)))


class Problems:
    """Contexts in an order of its own for each seed: all of them, reshuffled, again and again."""

    def __init__(self, num_contexts: int, generators: Sequence[torch.Generator]) -> None:
        self._num_contexts, self._generators = num_contexts, generators
        self._waiting = torch.empty(len(generators), 0, dtype=torch.long)

    def take(self, count: int) -> Tensor:
        while self._waiting.shape[1] < count:
            orders = [torch.randperm(self._num_contexts, generator=each) for each in self._generators]
            self._waiting = torch.cat([self._waiting, torch.stack(orders)], 1)
        taken, self._waiting = self._waiting[:, :count], self._waiting[:, count:]
        return taken


def shuffled(answers: Answers, protocol: Protocol, generators: Sequence[torch.Generator]) -> list[Answers]:
    num_problems = answers.reward.shape[1]
    minibatches = []
    for _ in range(protocol.epochs):
        orders = torch.stack([torch.randperm(num_problems, generator=each) for each in generators])
        minibatches += [answers.take(part) for part in orders.split(protocol.problems_per_update, 1)]
    return minibatches


def update(
    world: ExactWorld,
    method: Algorithm,
    protocol: Protocol,
    parameters: Tensor,
    entry: Tensor,
    past: Past,
    minibatch: Answers,
    optimizer: Optimizer,
    version: int,
) -> tuple[tuple[Tensor, ...], Past]:
    """One optimizer update of every seed; returns the fields of `Course` that are means, each [S], and what
    bound rule and objective remember of each seed. The batch entered training under the parameters `entry`.
    """
    with_entropy = "entropy_gradient" in needs_of(method.objective)
    with_candidates = needs_candidates(method.objective)
    with_entry = scores_at_entry(method.objective)

    def one_seed(
        seed_weights: Tensor, seed_entry: Tensor, seed_past: Past, *tensors: Tensor
    ) -> tuple[tuple[Tensor, ...], Past]:
        known = seed_entry if with_entry else None
        answers = Answers(*tensors)
        table = token_table(
            world, seed_weights, answers, method.weighting, version, with_entropy, known, with_candidates
        )
        return loss_and_metrics(table, method, seed_past, protocol.micro_batches)

    optimizer.zero_grad()
    (losses, *metrics), past = torch.vmap(one_seed)(parameters, entry, past, *minibatch.tensors())
    losses.sum().backward()
    assert parameters.grad is not None
    norm = clip_each(parameters.grad, protocol.max_grad_norm)
    optimizer.step()
    return (*metrics, norm), past


def clip_each(gradient: Tensor, max_norm: float) -> Tensor:
    """Scales the gradient of each seed, [S, ...], down to this norm; returns the norms before, [S]."""
    norm = gradient.flatten(1).norm(dim=1)
    scale = (max_norm / (norm + NORM_EPS)).clamp_max(1)
    gradient.mul_(scale.view(-1, *[1] * (gradient.dim() - 1)))
    return norm


def loss_and_metrics(
    table: TokenTable, method: Algorithm, past: Past, micro_batches: int
) -> tuple[tuple[Tensor, ...], Past]:
    """Loss of one seed's minibatch, then the bounds and their effect, all 0-dim; and what bound rule and
    objective remember.
    """
    parts = [table]
    if searches_each_micro_batch(method.bounds):
        columns = [values.chunk(micro_batches) for values in table.columns.values()]
        parts = [
            TokenTable.of(dict(zip(table.columns, part, strict=True))) for part in zip(*columns, strict=True)
        ]
    losses, searches, tables = [], [], []
    searched, seen = past
    for scope in method.bounds.scopes(parts):
        bounds, searched = chosen(method.bounds, [part.detach() for part in scope], searched)
        for part in scope:
            bounded = part.detach().with_bounds(bounds.low, bounds.high)
            prepared, seen = known(method.objective, bounded, seen)
            loss, bounded = token_loss(part, bounds, prepared, method.objective)
            losses.append(loss)
            tables.append(with_slopes(bounded.detach(), method.objective))
        searches.append(bounds)
    lows, highs, values, met = (torch.stack(numbers).float() for numbers in zip(*searches, strict=True))
    rests, ends = shares_at_ends(method.bounds, lows, highs, values)
    whole = TokenTable.of(concatenate(tables, tables[0].columns))
    shares = positive_shares(whole, method.bounds.weight)
    clipped = clipped_fractions(whole.slope, whole.advantage, whole.count)
    numbers = (lows.mean(), highs.mean(), met.mean(), rests, ends, *shares, *clipped)
    return (torch.stack(losses).sum(), *numbers), (searched, seen)


def shares_at_ends(rule: BoundRule, low: Tensor, high: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the shares of N searches that stay at the start of their path and that run to its end, 0-dim;
    NaN if nothing was searched, or if there was nothing to balance. Given are the bounds found, [N], and the
    positive contributions, [N]: NaN for a search with nothing to balance, which does not count.
    """
    if not isinstance(rule, AdaptiveBounds):
        return value.new_full((), torch.nan), value.new_full((), torch.nan)
    shares = []
    for end_low, end_high in rule.ends_of_path:
        there = ((low - end_low).abs() < SAME_BOUND) & ((high - end_high).abs() < SAME_BOUND)
        shares.append(torch.where(value.isnan(), torch.nan, there.float()).nanmean())
    return shares[0], shares[1]


def chosen(rule: BoundRule, tables: Sequence[TokenTable], past: Tensor) -> tuple[BoundSearch, Tensor]:
    """Bounds of one seed. The past is an argument, since a rule cannot keep those of all seeds."""
    return rule.search(tables, past) if isinstance(rule, AdaptiveBounds) else (rule.choose(tables), past)


def known(objective: Objective, table: TokenTable, past: Tensor) -> tuple[Mapping[str, Tensor], Tensor]:
    """Columns that the objective of one seed prepares, and what it remembers."""
    if remembers(objective):
        return objective.remember(table, past)
    return objective.prepare(table) if prepares(objective) else {}, past


@torch.no_grad()
def exact(world: ExactWorld, parameters: Tensor) -> tuple[Tensor, ...]:
    logp = world.log_probs(parameters)
    success = world.success(logp)
    worst = success.sort(dim=-1).values[:, : max(world.num_contexts // 4, 1)].mean(-1)
    pass_at_k = (1 - (1 - success) ** 8).mean(-1)
    return success.mean(-1), world.entropy(logp), pass_at_k, world.key_probability(logp), worst


def means(measured: Sequence[tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
    """Means over updates, without those in which a value was undefined."""
    return tuple(torch.stack(column).nanmean(0) for column in zip(*measured, strict=True))
