"""Answers drawn from an exact world, for several seeds at once, and their token tables.

Shapes: S seeds, P problems, G answers to each, K decisions, T tokens of the longest answer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from itertools import repeat

import torch
from torch import Tensor

from bapo_lightning.objectives.advantages.reward_batch import BatchAdvantages, RewardBatch
from bapo_lightning.objectives.token_table import TokenTable, table_of
from bapo_lightning.objectives.weighting import weigh
from bapo_lightning.types import NO_CANDIDATE
from studies.exact.world import ExactWorld


@dataclass(frozen=True)
class Answers:
    """Groups of answers; for one seed without S."""

    context: Tensor  # [S, P], number of the context
    actions: Tensor  # [S, P, G, K]
    behaviour_logp: Tensor  # [S, P, G, K], nats
    reward: Tensor  # [S, P, G], 0 or 1
    advantage: Tensor  # [S, P, G]
    version: Tensor  # [S, P, G], updates in the parameters that sampled
    behaviour: Tensor  # [S, P, K, A], nats, of every action

    def take(self, problems: Tensor) -> Answers:
        """Returns the groups of each seed with these numbers, [S, p]."""
        seeds = torch.arange(len(problems)).unsqueeze(1)
        return Answers(*(getattr(self, field.name)[seeds, problems] for field in fields(self)))

    def tensors(self) -> tuple[Tensor, ...]:
        return tuple(getattr(self, field.name) for field in fields(self))


def draw(
    world: ExactWorld,
    parameters: Tensor,
    version: int,
    contexts: Tensor,
    group_size: int,
    advantages: Callable[[Tensor], Tensor],
    generators: list[torch.Generator],
    batch_advantages: Sequence[BatchAdvantages] = (),
) -> Answers:
    """Samples groups of answers and rewards them.

    Args:
        world: where they are drawn.
        parameters: of the behaviour policy, [S, F, K, A].
        version: updates in these parameters.
        contexts: of the problems, [S, P].
        group_size: G.
        advantages: rewards[P, G] -> advantages[P, G].
        generators: one for each seed, so that a seed draws the same numbers whatever it is trained with.
        batch_advantages: one for each seed; none: `advantages` stay.
    """
    logp = world.log_probs(parameters)  # [S, C, K, A]
    num_seeds, num_problems = contexts.shape
    num_decisions, num_actions = logp.shape[-2:]
    shape = (num_problems, num_decisions, group_size)
    uniform = torch.stack([torch.rand(2, *shape, generator=generator) for generator in generators], 1)
    logp_drawn = logp[torch.arange(num_seeds).unsqueeze(1), contexts]  # [S, P, K, A]
    cumulative = logp_drawn.exp().cumsum(-1)
    point = uniform[0] * cumulative[..., -1:]
    actions = torch.searchsorted(cumulative, point, right=True).clamp_max(num_actions - 1)  # [S, P, K, G]
    reward = (uniform[1] < world.right[contexts].gather(-1, actions)).all(-2).float()
    advantage = advantages(reward.flatten(0, 1)).view_as(reward)
    if batch_advantages:
        lengths = answer_lengths(world, reward)
        problems = [tuple(map(str, row)) for row in contexts.tolist()]
        batches = map(RewardBatch, reward, lengths, advantage, problems, repeat((True,) * num_problems))
        advantage = torch.stack([rule(batch) for rule, batch in zip(batch_advantages, batches, strict=True)])
    return Answers(
        context=contexts,
        actions=actions.transpose(-1, -2),
        behaviour_logp=logp_drawn.gather(-1, actions).transpose(-1, -2),
        reward=reward,
        advantage=advantage,
        version=torch.full_like(reward, version, dtype=torch.long),
        behaviour=logp_drawn,
    )


def answer_lengths(world: ExactWorld, reward: Tensor) -> Tensor:
    return torch.where(reward > 0, world.right_tokens, world.wrong_tokens)


def token_table(
    world: ExactWorld,
    parameters: Tensor,
    answers: Answers,
    weighting: Callable[..., Tensor],
    version: int,
    entropy_requires_grad: bool = False,
    entry: Tensor | None = None,
    with_candidates: bool = False,
) -> TokenTable:
    """Returns the table of one seed's minibatch.

    An answer has K + 1 rows: its decisions, and one for all tokens of probability one that follow, with their
    weights added up. They have the same ratio and the same advantage, so that every sum is what it would be
    with rows of their own.

    Args:
        world: where they were drawn.
        parameters: of the policy, [F, K, A].
        answers: of one seed, [p, G].
        weighting: mask[B, T] -> weights[B, T], from `objectives.weighting`.
        version: updates in the parameters.
        entropy_requires_grad: let gradients flow through the entropy; otherwise it is a constant.
        entry: parameters when the answers entered training, where the objective needs to know of them.
        with_candidates: let the table have the log-probs of all actions.
    """
    all_logp = world.log_probs(parameters, answers.context)  # [p, K, A]
    num_decisions = all_logp.shape[1]
    logp = all_logp.gather(-1, answers.actions.transpose(1, 2)).transpose(1, 2)  # [p, G, K]
    known = all_logp if entropy_requires_grad else all_logp.detach()
    of_decisions = scores(known, None if entry is None else world.log_probs(entry, answers.context))
    length = answer_lengths(world, answers.reward).flatten()
    mask = torch.arange(max(world.right_tokens, world.wrong_tokens)) < length.unsqueeze(1)  # [B, T]

    def rows(values: Tensor) -> Tensor:
        return torch.nn.functional.pad(values.flatten(0, 1), (0, 1)).flatten()

    def gathered(values: Tensor) -> Tensor:
        decided, rest = values.tensor_split([num_decisions], dim=1)
        return torch.cat([decided, rest.sum(1, keepdim=True)], 1)

    of_rows = {name: rows(values.unsqueeze(1).expand_as(logp)) for name, values in of_decisions.items()}
    if with_candidates:
        noted = {"candidate_logp": all_logp, "candidate_behaviour_logp": answers.behaviour}
        of_rows |= {name: candidates(values, logp.shape) for name, values in noted.items()}
    behaviour_logp, logp = rows(answers.behaviour_logp), rows(logp)
    tokens = gathered(mask.float())
    number, position = torch.arange(len(mask)).unsqueeze(1), torch.arange(num_decisions + 1)

    def each(values: Tensor) -> Tensor:
        return values.expand_as(tokens).flatten()

    return table_of(
        logp,
        behaviour_logp,
        **of_rows,
        age=version - each(answers.version.reshape(-1, 1)),
        sequence=each(number),
        group=each(number // answers.reward.shape[-1]),
        position=each(position),
        count=tokens.flatten(),
        advantage=each(answers.advantage.reshape(-1, 1)),
        weight=gathered(weigh(weighting, mask, mask.sum(), torch.tensor(len(mask)))).flatten(),
    )


def candidates(all_logp: Tensor, shape: torch.Size) -> Tensor:
    """Returns the log-probs [p, K, A] of all actions as a column of the table, [N, A], for answers of a shape
    [p, G, K].
    """
    of_answers = all_logp.unsqueeze(1).expand(*shape, -1).flatten(0, 1)
    return torch.nn.functional.pad(of_answers, (0, 0, 0, 1), value=NO_CANDIDATE).flatten(0, 1)


def scores(all_logp: Tensor, at_entry: Tensor | None) -> dict[str, Tensor]:
    """Returns the entropy of each decision, [p, K], and what else a table knows of it, by the names of its
    columns.

    Args:
        all_logp: log-probs of all actions, [p, K, A].
        at_entry: those when the answers entered training; None: not needed.
    """
    measured = {"entropy": -(all_logp.exp() * all_logp).sum(-1)}
    if at_entry is None:
        return measured
    before = scores(at_entry, None)["entropy"]
    means = {"mean_logp": all_logp.detach().mean(-1), "entry_mean_logp": at_entry.mean(-1)}
    return measured | {"entry_entropy": before} | means
