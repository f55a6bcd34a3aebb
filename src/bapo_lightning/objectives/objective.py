"""An algorithm's objective: a function of the token table, or an object that also declares its needs.

    needs     columns that only some objectives get, see `Need`
    prepare   table of the whole update -> more columns, before the first gradient
    call      table -> objective of every token, to be maximised

A plain formula is a function, marked with `needs` if it has any. `clip` is the objective of GRPO, DAPO and
BAPO, which differ in the source of their bounds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Literal, Protocol, TypeGuard, get_args

import torch
from torch import Tensor

from bapo_lightning.objectives.bounds import BoundSearch
from bapo_lightning.objectives.surrogate import DualClip, clipped_surrogate
from bapo_lightning.objectives.token_table import TokenTable, name_of, without_options
from bapo_lightning.system.errors import ConfigError, suggestion

# table -> objective[N] to maximise
Objective = Callable[[TokenTable], Tensor]
# Columns of `token_table.ON_DEMAND`, and gradients through `entropy`; they cost memory and time. For scores
# at entry, a batch passes through the trainer's model once more when it enters training, which does not
# change ratios; for `reference_logp` a second copy of the weights scores it; for `log_z` the policy gets a
# head.
Need = Literal[
    "entry_entropy",
    "mean_logp",
    "entry_mean_logp",
    "reference_logp",
    "log_z",
    "step",
    "candidate_logp",
    "candidate_behaviour_logp",
    "entropy_gradient",
]
ENTRY = "entry_"  # prefix of the names of scores at entry
CANDIDATES = frozenset({"candidate_logp", "candidate_behaviour_logp"})


class Prepares(Protocol):
    """An objective that sees the whole update before its first gradient."""

    def prepare(self, table: TokenTable) -> Mapping[str, Tensor]:
        """Returns more columns for the table that it is called with, each [N] or 0-dim.

        `needs` marks it with the columns that it reads, since ranks exchange no others.

        Args:
            table: whole update with its bounds, without graph, [N].
        """

    def __call__(self, table: TokenTable) -> Tensor:
        """Returns the objective of each token, [N]."""


class RemembersUpdates(Prepares, Protocol):
    """An objective that remembers earlier updates in `past`, a buffer that checkpoints hold."""

    past: Tensor

    def remember(self, table: TokenTable, past: Tensor) -> tuple[Mapping[str, Tensor], Tensor]:
        """Returns the result of `prepare`, and the new value of `past`."""


def prepares(objective: object) -> TypeGuard[Prepares]:
    """Whether an objective, or an objective's class, has more columns to prepare."""
    return hasattr(without_options(objective), "prepare")


def remembers(objective: object) -> TypeGuard[RemembersUpdates]:
    """Whether it has a memory. From Python 3.12 on, `isinstance` does not see a module's buffers."""
    return hasattr(objective, "past") and hasattr(objective, "remember")


def needs_of(objective: Any) -> frozenset[str]:
    """Returns the needs of an objective, of a partial or a class. Raises ConfigError for unknown ones."""
    needs = frozenset(getattr(without_options(objective), "needs", ()))
    known = get_args(Need)
    for name in sorted(needs.difference(known)):
        problem = f"{name_of(objective)}.needs has {name}, which no objective gets: {suggestion(name, known)}"
        raise ConfigError([problem])
    return needs


def needs_candidates(objective: Any) -> bool:
    """Returns whether an objective needs log-probs of tokens that were not sampled: of the `head` likeliest
    tokens at each place (its option), or of all if that is None.
    """
    return not CANDIDATES.isdisjoint(needs_of(objective))


def scores_at_entry(objective: Any) -> tuple[str, ...]:
    """Returns the scores at the batch's entry into training that an objective compares the policy with."""
    return tuple(sorted(name.removeprefix(ENTRY) for name in needs_of(objective) if name.startswith(ENTRY)))


def token_loss(
    table: TokenTable, bounds: BoundSearch, columns: Mapping[str, Tensor], objective: Objective
) -> tuple[Tensor, TokenTable]:
    """Returns the loss of some tokens of an update (Eq. 4), 0-dim, and their table as the objective saw it.

    Args:
        table: [N] tokens, each with its weight in the loss of the whole update.
        bounds: bounds of the update.
        columns: columns for these tokens that the objective prepared from the whole update.
        objective: objective of each token, to be maximised.

    Raises:
        ConfigError: the objective does not return one value for each token.
    """
    table = table.with_bounds(bounds.low, bounds.high).with_columns(columns)
    values = objective(table)
    if (shape := getattr(values, "shape", None)) != table.weight.shape:  # would be broadcast, and wrong
        returned = type(values).__name__ if shape is None else f"a tensor of shape {list(shape)}"
        wanted = f"for {len(table.weight)} tokens; return one value for each, [N]"
        raise ConfigError([f"algorithm.objective: {name_of(objective)} returned {returned} {wanted}"])
    return -(table.weight * values).sum(), table


def slopes(objective: Objective, table: TokenTable) -> Tensor:
    """Returns d objective / d r of every token, [N]: A without clipping, 0 if the objective cuts the
    gradient.

    For an objective of whole responses it is the derivative of the response's sum. Weights are left out: they
    are equal within a response, except for its correction.
    """

    def total(ratio: Tensor, log_ratio: Tensor) -> Tensor:
        return objective(replace(table, ratio=ratio, log_ratio=log_ratio)).sum()

    ratio, log_ratio = table.ratio.detach(), table.log_ratio.detach()
    by_ratio, by_log_ratio = torch.func.grad(total, argnums=(0, 1))(ratio, log_ratio)
    return by_ratio + by_log_ratio / ratio


def with_slopes(table: TokenTable, objective: Objective) -> TokenTable:
    """Returns the table with the slopes of an objective."""
    return replace(table, slope=slopes(objective, table))


def clip(table: TokenTable, dual_clip: DualClip | None = None) -> Tensor:
    """Returns PPO's objective within the bounds of the update, [N] (Eq. 4); see `clipped_surrogate`."""
    return clipped_surrogate(table.ratio, table.advantage, table.low, table.high, dual_clip)
