"""What the stand-ins share: tokens [B, T] as our table, and modules that take the place of another project's.

A stand-in is a pytest plugin, which `tests/zoo/suites.py` names by `-p`. It needs this folder and our source
on the path, and nothing of `tests`, whose name the other project's folder has as well.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, NoReturn
from unittest import SkipTest

import torch
from torch import Tensor

from bapo_lightning.objectives.advantages.group import group_advantages
from bapo_lightning.objectives.objective import prepares
from bapo_lightning.objectives.token_table import TokenTable, table_of

# Advantages without a deviation, to the mean of the others: rewards[P, G] -> [P, G].
rloo = partial(group_advantages, scale="none", baseline="leave_one_out")


def not_here(reason: str) -> NoReturn:
    """Lists a test as one of something without a counterpart in our code."""
    raise SkipTest(reason)


class NotHere:
    """Something of theirs without a counterpart in our code; a test that uses it is listed so."""

    def __init__(self, reason: str) -> None:
        self._reason = reason

    def __call__(self, *_: Any, **__: Any) -> Any:
        not_here(self._reason)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # pytest looks for marks and tests among the names of a module
            raise AttributeError(name)
        not_here(self._reason)


class Measures(dict[str, float]):
    """Metrics that we measure as well; a test that asks for another one is listed."""

    def __missing__(self, name: str) -> float:
        not_here(f"{name} is not measured here")

    def __contains__(self, name: object) -> bool:
        return super().__contains__(name) or bool(self[str(name)])


class Options(SimpleNamespace):
    """Options of theirs; what was not set is None."""

    def __getattr__(self, name: str) -> None:
        if name.startswith("__"):
            raise AttributeError(name)


def stand_in(name: str, **members: Any) -> None:
    """Puts a module with these members in the place of theirs, and empty ones in that of its packages."""
    module = sys.modules.setdefault(name, ModuleType(name))
    vars(module).update(members)
    package, _, own = name.rpartition(".")
    if package:
        stand_in(package, **{own: module})


def taken_from(path: str, *names: str, **known: Any) -> list[Callable[..., Any]]:
    """Returns functions of a file of theirs, without decorators, which see torch and `known` alone."""
    source = ast.parse(Path(path).read_text())
    found = [each for each in source.body if isinstance(each, ast.FunctionDef) and each.name in names]
    for function in found:
        function.decorator_list = []
    members: dict[str, Any] = {"torch": torch, **known}
    exec(compile(ast.Module(found, []), path, "exec", flags=annotations.compiler_flag), members)
    return [members[name] for name in names]


def table(
    logp: Tensor,
    old: Tensor | None = None,
    advantage: Tensor | None = None,
    mask: Tensor | None = None,
    sampled: Tensor | None = None,
) -> TokenTable:
    """Returns the table of all cells [B, T]; those outside of the mask stand for no token.

    Args:
        logp: log-probs of the policy, [B, T] nats.
        old: those that ratios are taken to; None: `logp`.
        advantage: of each token, [B, T], or of each response, [B, 1]; None: 1.
        mask: response tokens; None: all.
        sampled: log-probs of the engine; None: `old`.
    """
    old = logp.detach() if old is None else old
    count = torch.ones_like(logp.detach()) if mask is None else mask.to(logp.dtype)
    advantage = torch.ones_like(count) if advantage is None else advantage
    sequence, position = (
        axis.flatten() for axis in torch.meshgrid(*map(torch.arange, logp.shape), indexing="ij")
    )
    return table_of(
        logp.flatten(), (old if sampled is None else sampled).flatten(), old.flatten(),
        entropy=torch.zeros_like(count).flatten(), age=torch.zeros_like(sequence), sequence=sequence,
        group=sequence, position=position, count=count.flatten(),
        advantage=advantage.expand_as(logp).flatten(), weight=count.flatten(),
    )  # fmt: skip


def bounded(tokens: TokenTable, low: float = 0.0, high: float = torch.inf) -> TokenTable:
    """Returns the table with bounds of the ratio."""
    return tokens.with_bounds(torch.tensor(low), torch.tensor(high))


def token_losses(objective: Any, tokens: TokenTable, like: Tensor) -> Tensor:
    """Returns the loss of each cell, [B, T] as `like`, with what the objective prepares of the update."""
    if prepares(objective):
        tokens = tokens.with_columns(objective.prepare(tokens.detach()))
    return -objective(tokens).view_as(like)


def groups_of(index: Any) -> Iterator[Tensor]:
    """Yields the rows of each group, [G], from the group's name of each row."""
    names = [str(name) for name in index]
    for name in dict.fromkeys(names):
        yield torch.tensor([row for row, own in enumerate(names) if own == name])


def outcome_advantages(
    advantages: Callable[[Tensor], Tensor], token_level_rewards: Tensor, response_mask: Tensor, index: Any
) -> tuple[Tensor, Tensor]:
    """Returns advantages [B, T] twice, as their estimators do, by a function of the rewards [1, G] of each
    group.
    """
    scores = token_level_rewards.sum(-1)
    found = torch.zeros_like(scores)
    for rows in groups_of(index[: len(scores)]):
        if len(rows) == 1:
            not_here("a group of one response is refused here")
        found[rows] = advantages(scores[rows][None])[0]
    spread = found[:, None] * response_mask
    return spread, spread


def estimator(advantages: Callable[..., Tensor]) -> Callable[..., tuple[Tensor, Tensor]]:
    """Returns an estimator with the arguments that those of verl and SkyRL share."""
    return partial(outcome_advantages, advantages)
