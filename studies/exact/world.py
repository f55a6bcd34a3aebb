"""A world whose expected reward and entropy are sums, not samples.

    context c --features--> logits[c, k, a] of K decisions among A actions, one softmax each
    right[c, k, a]          probability that action a is right as decision k; an answer is right if all K are

A response is its K decisions and then tokens of probability one, which only take up room: right answers have
`right_tokens` tokens in all, wrong ones `wrong_tokens`. So the lengths, and with them the share of positive
tokens, are set by the world and cannot be unlearned.

Shapes: S seeds, C contexts, F features, K decisions, A actions.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated

import torch
from annotated_types import Ge, Gt, Le, Lt
from torch import Tensor

from bapo_lightning.system.values import Seed, Share

Few = Annotated[int, Ge(1), Le(1000)]  # every seed has a table of all contexts, decisions and actions
Actions = Annotated[int, Ge(3), Le(1000)]  # the popular one, the key, and others
Chance = Annotated[float, Ge(0), Le(1)]


@dataclass(frozen=True)
class ExactWorld:
    """Contexts, the softmax policy at the start, and what is right."""

    name: str
    features: Tensor  # [C, F]; logits are linear in them
    prior: Tensor  # [F, K, A], parameters at the start
    right: Tensor  # [C, K, A]
    key: Tensor  # [C], the rare action of the first decision that is always right
    right_tokens: int  # of a right answer
    wrong_tokens: int  # of a wrong answer

    def __post_init__(self) -> None:
        """Raises ValueError for answers that are shorter than their decisions."""
        decisions = self.prior.shape[1]
        if min(self.right_tokens, self.wrong_tokens) < decisions:
            raise ValueError(
                f"right_tokens and wrong_tokens must be at least {decisions}, one for each decision"
            )

    @property
    def num_contexts(self) -> int:
        """C."""
        return len(self.features)

    def log_probs(self, parameters: Tensor, contexts: Tensor | None = None) -> Tensor:
        """Log-probs in nats of every action, [..., C, K, A], under parameters [..., F, K, A].

        Args:
            parameters: of the policy.
            contexts: numbers of the contexts that are asked for, [c]; None: all.
        """
        features = self.features.to(parameters.dtype)
        chosen = features if contexts is None else features[contexts]
        return torch.einsum("cf,...fka->...cka", chosen, parameters).log_softmax(-1)

    def success(self, logp: Tensor) -> Tensor:
        return (logp.exp() * self.right).sum(-1).prod(-1)

    def entropy(self, logp: Tensor) -> Tensor:
        return -(logp.exp() * logp).sum(-1).mean((-1, -2))

    def key_probability(self, logp: Tensor) -> Tensor:
        keys = self.key.expand(logp.shape[:-2]).unsqueeze(-1)
        return logp[..., 0, :].gather(-1, keys).exp().mean((-1, -2))


def contextual_table(
    num_contexts: Few = 64,
    num_actions: Actions = 20,
    key_prior: Share = 0.03,
    popular_prior: Share = 0.6,
    popular_right: Chance = 0.4,
    right_tokens: Few = 5,
    wrong_tokens: Few = 9,
) -> ExactWorld:
    """Returns a world in which every context has logits of its own: nothing generalises.

    Args:
        num_contexts: C.
        num_actions: A.
        key_prior: probability at the start of the one action that is always right.
        popular_prior: probability at the start of the popular action, the local optimum.
        popular_right: probability that the popular action is right, anew for every answer.
        right_tokens: length of a right answer.
        wrong_tokens: length of a wrong answer.
    """
    row = _first_decision(num_actions, 0, popular_prior, 1, key_prior).log()
    right = torch.zeros(num_contexts, 1, num_actions)
    right[..., 0], right[..., 1] = popular_right, 1.0
    return ExactWorld(
        name="table",
        features=torch.eye(num_contexts),
        prior=row.expand(num_contexts, 1, num_actions).clone(),
        right=right,
        key=torch.ones(num_contexts, dtype=torch.long),
        right_tokens=right_tokens,
        wrong_tokens=wrong_tokens,
    )


def coin_table(
    chance: Share = 0.5,
    num_contexts: Few = 64,
    num_actions: Actions = 20,
    key_prior: Share = 0.03,
    popular_prior: Share = 0.6,
    right_tokens: Few = 5,
    wrong_tokens: Few = 5,
) -> ExactWorld:
    """Returns `contextual_table` in which a coin says what is right: reward tells nothing of the answer.

    Args:
        chance: probability that an answer is right, whatever it is.
        num_contexts: C.
        num_actions: A.
        key_prior: probability at the start of one rare action.
        popular_prior: probability at the start of the popular action.
        right_tokens: length of an answer that is called right.
        wrong_tokens: length of one that is called wrong.
    """
    table = contextual_table(
        num_contexts, num_actions, key_prior, popular_prior, chance, right_tokens, wrong_tokens
    )
    return replace(table, name="coin", right=torch.full_like(table.right, chance))


def factored_softmax(
    num_classes: Few = 8,
    contexts_per_class: Few = 8,
    num_decisions: Few = 4,
    num_actions: Actions = 64,
    key_prior: Share = 0.02,
    popular_prior: Share = 0.6,
    popular_right: Chance = 0.4,
    habit_prior: Annotated[float, Gt(0), Lt(1)] = 0.8,
    right_tokens: Few = 5,
    wrong_tokens: Few = 9,
    seed: Seed = 0,
) -> ExactWorld:
    """Returns a world of several decisions in which the contexts of a class share parameters.

    The first decision is that of `contextual_table`, with a key action for each class; each of the others
    has one right action, of probability `habit_prior` at the start. Features of a context are its class and,
    at a third of the size, random numbers of its own.

    Args:
        num_classes: classes of contexts that have the same right actions.
        contexts_per_class: contexts in each of them.
        num_decisions: K.
        num_actions: A.
        key_prior: as for `contextual_table`.
        popular_prior: as for `contextual_table`.
        popular_right: as for `contextual_table`.
        habit_prior: probability at the start of each later decision's right action.
        right_tokens: length of a right answer, at least K.
        wrong_tokens: length of a wrong answer, at least K.
        seed: of the random features and the places of the right actions.
    """
    generator = torch.Generator().manual_seed(seed)
    num_contexts = num_classes * contexts_per_class
    kind = torch.arange(num_classes).repeat_interleave(contexts_per_class)
    noise = torch.randn(num_contexts, num_classes, generator=generator) / (3 * num_classes**0.5)
    features = torch.cat([torch.eye(num_classes)[kind], noise], 1)
    places = torch.stack([torch.randperm(num_actions, generator=generator)[:2] for _ in range(num_classes)])
    habits = torch.randint(num_actions, (num_classes, num_decisions - 1), generator=generator)
    prior = torch.zeros(2 * num_classes, num_decisions, num_actions)
    right = torch.zeros(num_contexts, num_decisions, num_actions)
    for number in range(num_classes):
        popular, key = places[number].tolist()
        first = _first_decision(num_actions, popular, popular_prior, key, key_prior)
        later = torch.full((num_decisions - 1, num_actions), (1 - habit_prior) / (num_actions - 1))
        later.scatter_(1, habits[number].unsqueeze(1), habit_prior)
        prior[number] = torch.cat([first.unsqueeze(0), later]).log()
        members = kind == number
        right[members, 0, popular], right[members, 0, key] = popular_right, 1.0
        for decision, action in enumerate(habits[number].tolist(), 1):
            right[members, decision, action] = 1.0
    return ExactWorld("factored", features, prior, right, places[kind, 1], right_tokens, wrong_tokens)


def _first_decision(
    num_actions: int, popular: int, popular_prior: float, key: int, key_prior: float
) -> Tensor:
    """Probabilities of the popular action, of the key, and of the others, which share the rest. Raises
    ValueError where nothing is left for them.
    """
    if key_prior + popular_prior >= 1:
        raise ValueError(f"key_prior={key_prior} and popular_prior={popular_prior} must be below 1 together")
    row = torch.full((num_actions,), (1 - key_prior - popular_prior) / (num_actions - 2))
    row[popular], row[key] = popular_prior, key_prior
    return row
