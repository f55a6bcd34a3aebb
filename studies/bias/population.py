"""The gradient of an algorithm's own loss over all answers at once, each counted by how often it occurs.

    frequency[N]: probabilities, for the expectation, or shares of a batch that was drawn
    table of all answers, weights times frequency -- correction, bounds, objective --> loss
    what a bound rule or an objective takes from the whole update is taken from these frequencies

Shapes: S starts, N answers, K decisions, A actions, T tokens of the longest answer. All is float64.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from bapo_lightning.modules.algorithm import Algorithm
from bapo_lightning.modules.bound_rules import AdaptiveBounds
from bapo_lightning.objectives.objective import needs_candidates, prepares, scores_at_entry, token_loss
from bapo_lightning.objectives.token_table import Correction, Proximal, TokenTable, table_of
from bapo_lightning.objectives.weighting import parameters_of, weigh
from studies.exact.enumerated import Enumerated
from studies.exact.samples import candidates, scores

POPULATION = 2.0**20  # answers of a batch that counts as infinite, where an objective picks whole tokens


@dataclass(frozen=True)
class Method:
    """An algorithm with a correction."""

    algorithm: Algorithm
    correction: Correction | None
    proximal: Proximal | None
    entry: float  # share of the batch's age that it had when it entered training

    @property
    def couples(self) -> bool:
        """Whether the gradient of an answer depends on the other answers of its batch."""
        return self.algorithm.bounds.searches or prepares(self.algorithm.objective)

    @property
    def divides_by_tokens(self) -> bool:
        """Whether the loss is divided by the tokens of the batch, whose number is random."""
        return "total" in parameters_of(self.algorithm.weighting)


@dataclass(frozen=True)
class Stale:
    """Log-probs of all actions, [S, N, K, A], under three policies of a path."""

    world: Enumerated
    current: Tensor
    behaviour: Tensor
    entry: Tensor  # when the batch entered training
    age: int
    age_at_entry: int


@dataclass(frozen=True)
class Slopes:
    """Derivatives of the objective of all answers, with their frequencies."""

    logits: Tensor  # [S, N, K, A]
    taken: Tensor  # [S, N, K], by the log-prob of the action taken alone
    low: Tensor  # [S]
    high: Tensor


def slopes(
    method: Method, stale: Stale, advantage: Tensor, frequency: Tensor, size: float = POPULATION
) -> Slopes:
    """Returns the slopes of every start at once.

    Args:
        method: whose loss is differentiated.
        stale: policies; B batches of each start have the log-probs of their start.
        advantage: [S, N], or [B * S, N] for B batches.
        frequency: the same shape, how often each answer occurs; a row sums to 1.
        size: answers of the batch.
    """
    world, repeats = stale.world, len(frequency) // len(stale.current)
    all_logp = stale.current.repeat(repeats, 1, 1, 1).requires_grad_()
    taken = world.taken(all_logp.detach()).requires_grad_()
    known = [stale.behaviour.repeat(repeats, 1, 1, 1), stale.entry.repeat(repeats, 1, 1, 1)]

    def one(*tensors: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return _loss(method, size, tensors[-1], *_table(method, stale, *tensors))

    losses, low, high = torch.vmap(one)(taken, all_logp, *known, advantage, frequency)
    by_taken, by_logp = torch.autograd.grad(-losses.sum(), (taken, all_logp), allow_unused=True)
    whole = torch.zeros_like(all_logp) if by_logp is None else by_logp
    places = world.actions.expand_as(by_taken).unsqueeze(-1)
    whole = whole.scatter_add(-1, places, by_taken.unsqueeze(-1))
    of_logits = whole - all_logp.detach().exp() * whole.sum(-1, keepdim=True)
    return Slopes(of_logits, by_taken, low.detach().double(), high.detach().double())


def _loss(
    method: Method, size: float, frequency: Tensor, table: TokenTable, tokens: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Loss and bounds of one start, 0-dim."""
    algorithm = method.algorithm
    if method.proximal is not None:
        table = table.relative_to(method.proximal(table.detach()))
    if method.correction is not None:
        table = table.corrected(method.correction(table.detach()))
    counted = replace(table.detach(), count=(tokens * frequency.unsqueeze(-1) * size).flatten())
    rule = algorithm.bounds
    bounds = (
        rule.search([counted], rule.past)[0]
        if isinstance(rule, AdaptiveBounds)
        else rule.choose([counted] if rule.searches else [])
    )
    bounded = counted.with_bounds(bounds.low, bounds.high)
    columns = algorithm.objective.prepare(bounded) if prepares(algorithm.objective) else {}
    loss, _ = token_loss(table, bounds, columns, algorithm.objective)
    return loss, bounds.low, bounds.high


def _table(
    method: Method,
    stale: Stale,
    taken: Tensor,
    all_logp: Tensor,
    behaviour: Tensor,
    entry: Tensor,
    advantage: Tensor,
    frequency: Tensor,
) -> tuple[TokenTable, Tensor]:
    """The table of all answers of one start, and the tokens of each row, [N, K + 1]. An answer has a row for
    each decision and one for its other tokens, as in `samples.token_table`.
    """
    world, objective = stale.world, method.algorithm.objective
    number, decisions = world.actions.shape
    length = world.length.double()
    mask = torch.arange(int(world.length.max())) < world.length.unsqueeze(1)  # [N, T]

    def rows(values: Tensor) -> Tensor:
        return torch.nn.functional.pad(values, (0, 1)).flatten()

    def gathered(values: Tensor) -> Tensor:
        decided, rest = values.double().tensor_split([decisions], dim=1)
        return torch.cat([decided, rest.sum(1, keepdim=True)], 1)

    tokens = gathered(mask)
    total = (frequency * length).sum()
    weight = gathered(weigh(method.algorithm.weighting, mask, total, 1.0)) * frequency.unsqueeze(-1)

    def each(values: Tensor) -> Tensor:
        return values.expand_as(tokens).flatten()

    more: dict[str, Any] = {
        name: rows(values)
        for name, values in scores(all_logp.detach(), entry if scores_at_entry(objective) else None).items()
    }
    if needs_candidates(objective):
        noted = {"candidate_logp": all_logp, "candidate_behaviour_logp": behaviour}
        shape = torch.Size((number, 1, decisions))
        more |= {name: candidates(values, shape) for name, values in noted.items()}
    is_recomputed = method.correction is not None and method.proximal is None
    table = table_of(
        rows(taken),
        rows(world.taken(behaviour)),
        rows(world.taken(entry)) if is_recomputed else None,
        each(torch.tensor(stale.age_at_entry)),
        age=each(torch.tensor(stale.age)),
        sequence=each(torch.arange(number).unsqueeze(1)),
        group=each(world.context.unsqueeze(1)),
        position=each(torch.arange(decisions + 1)),
        count=tokens.flatten(),
        advantage=each(advantage.unsqueeze(1)),
        weight=weight.flatten(),
        **more,
    )
    return table, tokens


def expected_advantage(
    advantages: Callable[[Tensor], Tensor], group_size: int, reward: Tensor, value: Tensor
) -> Tensor:
    """Returns the mean advantage of each answer, [S, N], over groups of G answers of its context, whose other
    G - 1 are drawn by the behaviour policy. Objectives that are linear in the advantage, given its sign,
    have the expected gradient of such groups.

    Args:
        advantages: rewards[P, G] -> advantages[P, G].
        group_size: G.
        reward: of each answer, [N], 0 or 1.
        value: probability of a right answer in its context, [S, N].
    """
    others = torch.arange(group_size)  # right ones
    rest = (torch.arange(1, group_size) <= others.unsqueeze(1)).double()
    tables = [
        advantages(torch.cat([torch.full((group_size, 1), outcome, dtype=torch.float64), rest], 1))[:, 0]
        for outcome in (0.0, 1.0)
    ]
    binomial = torch.distributions.Binomial(group_size - 1, value.clamp(0, 1).unsqueeze(-1))
    chance = binomial.log_prob(others.double()).exp()  # [S, N, G]
    wrong, right = ((chance * table.double()).sum(-1) for table in tables)
    return torch.where(reward > 0, right, wrong)
