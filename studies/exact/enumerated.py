"""Worlds small enough to list every answer, so that each expectation over answers is a sum.

    parameters --logits--> [S, N, K, A] --log_softmax--> log-probs of every action at every decision
    answer n has context[n], actions[n, :], reward[n] and length[n]; both rewards of an answer are listed
    chance[n]              of its context, times the chance of its reward given its actions

Logits are linear in the parameters. An answer's tokens after its K decisions have probability one and only
take up room, as in `ExactWorld`.

Shapes: S starts, N answers, K decisions, A actions, C contexts.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice, product
from typing import Annotated

import torch
from annotated_types import Ge, Le
from torch import Tensor

from bapo_lightning.system.values import NonNegative
from studies.exact.world import Few, factored_softmax

Depth = Annotated[int, Ge(1), Le(12)]  # 4096 answers


@dataclass(frozen=True)
class Enumerated(ABC):
    """Answers and the policies at the start, in float64."""

    start: Tensor  # parameters, [S, ...]
    actions: Tensor  # [N, K]
    reward: Tensor  # [N], 0 or 1
    chance: Tensor  # [S, N]
    context: Tensor  # [N]
    length: Tensor  # [N], tokens

    @abstractmethod
    def logits(self, parameters: Tensor) -> Tensor:
        """Logits [S, N, K, A] of parameters [S, ...]."""

    @abstractmethod
    def squared_norms(self, slopes: Tensor) -> Tensor:
        """|gradient|^2 of each answer, [S, N], for its slopes by the logits, [S, N, K, A]."""

    def pull(self, slopes: Tensor) -> Tensor:
        """Gradient [S, D] by the parameters, for slopes by the logits, [S, N, K, A], summed over answers."""
        parameters = self.start.clone().requires_grad_()
        (gradient,) = torch.autograd.grad(self.logits(parameters), parameters, slopes)
        return gradient.flatten(1)

    def log_probs(self, parameters: Tensor) -> Tensor:
        """Log-probs in nats of every action, [S, N, K, A]."""
        return self.logits(parameters).log_softmax(-1)

    def taken(self, all_logp: Tensor) -> Tensor:
        """Those of the actions taken, [S, N, K]."""
        return all_logp.gather(-1, self.actions.expand(*all_logp.shape[:-1]).unsqueeze(-1)).squeeze(-1)

    def probability(self, logp: Tensor) -> Tensor:
        """Probability of each answer with its context and reward, [S, N], by log-probs [S, N, K]."""
        return self.chance * logp.sum(-1).exp()

    def value(self, probability: Tensor) -> Tensor:
        """Mean reward in each answer's context, [S, N]."""
        count = int(self.context.max()) + 1
        place = self.context.expand_as(probability)
        sums = [
            probability.new_zeros(len(probability), count).scatter_add(1, place, each)
            for each in (probability * self.reward, probability)
        ]
        return (sums[0] / sums[1]).gather(1, place)

    def success(self, parameters: Tensor) -> Tensor:
        """Expected reward J, [S]."""
        return (self.probability(self.taken(self.log_probs(parameters))) * self.reward).sum(-1)

    def gradient(self, parameters: Tensor) -> Tensor:
        """The true policy gradient, grad J, [S, ...]."""
        leaf = parameters.detach().requires_grad_()
        (slope,) = torch.autograd.grad(self.success(leaf).sum(), leaf)
        return slope

    def ascent(self, parameters: Tensor, rate: float) -> Iterator[Tensor]:
        """Parameters after 0, 1, 2, ... updates of exact gradient ascent, without end."""
        while True:
            yield parameters
            parameters = parameters + rate * self.gradient(parameters)

    def after(self, updates: int, rate: float) -> Tensor:
        """Parameters after so many updates from the start."""
        return next(islice(self.ascent(self.start, rate), updates, None))


@dataclass(frozen=True)
class Tree(Enumerated):
    """Answers are bits, and every prefix has a logit of its own, as in an autoregressive model."""

    node: Tensor  # [N, K], number of the prefix before each bit

    def logits(self, parameters: Tensor) -> Tensor:
        ones = parameters[:, self.node]
        return torch.stack([torch.zeros_like(ones), ones], -1)

    def squared_norms(self, slopes: Tensor) -> Tensor:
        return slopes[..., 1].square().sum(-1)


@dataclass(frozen=True)
class Factored(Enumerated):
    """The decisions of `factored_softmax`, whose contexts share parameters."""

    features: Tensor  # [S, C, F]

    def logits(self, parameters: Tensor) -> Tensor:
        return torch.einsum("scf,sfka->scka", self.features, parameters)[:, self.context]

    def squared_norms(self, slopes: Tensor) -> Tensor:
        return slopes.square().sum((-1, -2)) * self.features.square().sum(-1)[:, self.context]


def tree(
    starts: int, depth: Depth = 8, need: Depth = 5, right_tokens: Few = 8, wrong_tokens: Few = 8
) -> Tree:
    """Returns a world of `depth` bits, in which an answer is right if at least `need` of them are ones.

    Args:
        starts: S; the logits of start s are normal numbers of numpy's generator s.
        depth: K.
        need: ones of a right answer.
        right_tokens: length of a right answer, at least K.
        wrong_tokens: length of a wrong answer, at least K.
    """
    import numpy as np

    actions = torch.tensor(list(product((0, 1), repeat=depth)))
    before = [actions[:, :place] @ (2 ** torch.arange(place).flip(0)) for place in range(depth)]
    node = torch.stack([2**place - 1 + number for place, number in enumerate(before)], 1)
    drawn = [np.random.default_rng(seed).normal(size=2**depth - 1) for seed in range(starts)]
    reward = (actions.sum(1) >= need).double()
    return Tree(
        start=torch.tensor(np.stack(drawn)),
        actions=actions,
        reward=reward,
        chance=torch.ones(starts, len(actions), dtype=torch.float64),
        context=torch.zeros(len(actions), dtype=torch.long),
        length=torch.where(reward > 0, right_tokens, wrong_tokens),
        node=node,
    )


def factored(
    starts: int,
    num_classes: Few = 2,
    contexts_per_class: Few = 2,
    num_decisions: Few = 3,
    num_actions: Few = 4,
    spread: NonNegative = 0.5,
    right_tokens: Few = 4,
    wrong_tokens: Few = 4,
) -> Factored:
    """Returns `factored_softmax` with every answer listed; start s has the features and the right actions of
    seed s, and logits that are moved by `spread` times normal numbers.
    """
    worlds = [
        factored_softmax(
            num_classes,
            contexts_per_class,
            num_decisions,
            num_actions,
            right_tokens=right_tokens,
            wrong_tokens=wrong_tokens,
            seed=seed,
        )
        for seed in range(starts)
    ]
    contexts = num_classes * contexts_per_class
    answers = torch.tensor(list(product(range(num_actions), repeat=num_decisions)))
    context = torch.arange(contexts).repeat_interleave(len(answers)).repeat(2)
    actions = answers.repeat(2 * contexts, 1)
    reward = torch.ones(len(context), dtype=torch.float64)
    reward[len(context) // 2 :] = 0.0
    decision = torch.arange(num_decisions)
    right = [world.right[context.unsqueeze(1), decision, actions].prod(1).double() for world in worlds]
    chance = torch.stack([torch.where(reward > 0, each, 1 - each) for each in right]) / contexts
    generator = torch.Generator().manual_seed(0)
    prior = torch.stack([world.prior.double() for world in worlds])
    moved = torch.randn(prior.shape, generator=generator, dtype=torch.float64)
    return Factored(
        start=prior + spread * moved,
        actions=actions,
        reward=reward,
        chance=chance,
        context=context,
        length=torch.where(reward > 0, right_tokens, wrong_tokens),
        features=torch.stack([world.features.double() for world in worlds]),
    )
