"""An objective's gradient by autograd, beside one written by hand from the paper's formula.

    random_columns --> TokenTable --> objective --> gradient of sum_t weight_t objective_t
          |                                             |  also by finite differences, and of slopes
          +---------> Reference.gradient ---------------+

A reference is numpy and loops, in closed form, and knows nothing of the torch code. Shapes: N tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from unittest import mock

import numpy as np
import torch
from tests.rivals import declared
from tests.zoo.algorithms import composed, names
from torch import Tensor

from bapo_lightning.modules.algorithm import Algorithm
from bapo_lightning.objectives.objective import needs_of, prepares, remembers, slopes
from bapo_lightning.objectives.token_table import ON_DEMAND, TokenTable, table_of

Array = np.ndarray
# Columns of a table by name, each [N]: float64, or int64 for age, sequence, group, position, origin and step.
Columns = dict[str, Array]

SPREADS = (5e-4, 1e-2, 0.3, 1.0, 2.0)  # nats, of log r within a response: bounds of GSPO to far out
STEP = 1e-7  # nats, of finite differences


def reinforce(columns: Columns) -> Array:
    """weight * advantage"""
    return columns["weight"] * columns["advantage"]


@dataclass(frozen=True)
class Reference:
    """What the gradient of an objective is."""

    # columns -> d(sum_t weight_t objective_t) / d logp_t, [N]
    gradient: Callable[[Columns], Array]
    # the same where all ratios are 1, [N], its docstring the formula; or why there is nothing to say
    at_one: Callable[[Columns], Array] | str = reinforce
    # why rows that stand for several tokens are not what single ones are; empty: they are
    rows: str = ""


@cache
def references() -> dict[str, Reference]:
    """The reference of each algorithm, by the name of its file in conf/algorithm: from its own test, or here;
    GRPO's for those that have GRPO's objective, whatever else differs.
    """
    found = dict(declared("REFERENCES"))
    for path in sorted(Path(__file__).parent.glob("references_*.py")):
        own = import_module(f"tests.zoo.{path.stem}").REFERENCES
        assert not found.keys() & own.keys(), f"{path.name} has references that another file has"
        found |= own
    others, objective = set(names()) - found.keys(), composed("algorithm", "grpo").objective
    clipped = {name for name in others if composed("algorithm", name).objective == objective}
    return found | dict.fromkeys(clipped, found["grpo"])


def random_columns(seed: int, at_one: bool = False) -> Columns:
    """Returns the columns of 5 groups of 4 responses of 1 to 14 tokens, which do not come in order.

    Ratios of some responses lie within all bounds, those of others far outside. One group has no advantages.
    Responses are of the same lengths for every seed, so that tables can be stacked. With `at_one` all ratios
    are 1, and the policy has not changed since it sampled.
    """
    structure, generator = np.random.default_rng(0), np.random.default_rng(seed)
    order, lengths = structure.permutation(20), structure.integers(1, 15, 20)
    lengths[:2] = 1, 14
    row = np.repeat(np.arange(20), lengths)
    size = len(row)
    position = np.concatenate([np.arange(length) for length in lengths])
    logp = -generator.gamma(2.0, 1.0, size)
    spread = generator.permutation(np.resize(SPREADS, 20))[row] * (not at_one)
    step = spread * generator.standard_normal(size)
    proximal = np.where(logp - step < 0, logp - step, logp + step)
    gap = 0.05 * generator.standard_normal(size) * (not at_one)
    advantage = generator.standard_normal(20) * (order // 4 != 2)
    others = np.random.default_rng(seed + 1000)
    columns = {
        "logp": logp,
        "log_ratio": logp - proximal,
        "ratio": np.exp(logp - proximal),
        "behaviour_logp": np.minimum(proximal + gap, 0.0),
        "proximal_logp": proximal,
        "reference_logp": -others.gamma(2.0, 1.0, size),
        "log_z": others.standard_normal(20)[row],
        "entropy": generator.gamma(1.0, 1.0, size),
        "age": generator.integers(0, 9, size),
        "sequence": order[row],
        "group": order[row] // 4,
        "position": position,
        "origin": structure.integers(0, 4, 20)[row],
        "step": position // 3,
        "count": np.ones(size),
        "advantage": advantage[row],
        "weight": (generator.uniform(0.5, 1.5, 20) / size)[row],
        "mean_logp": -generator.gamma(8.0, 1.0, size),
    }
    changes = generator.standard_normal((2, size)) * (not at_one)
    columns["entry_entropy"] = columns["entropy"] * np.exp(0.1 * changes[0])
    columns["entry_mean_logp"] = columns["mean_logp"] - changes[1]
    for name in ("candidate_logp", "candidate_behaviour_logp"):
        logits = others.standard_normal((size, 5))
        columns[name] = logits - np.log(np.exp(logits).sum(1, keepdims=True)) - 0.1
    return columns


def table_from(columns: Columns, method: Algorithm) -> TokenTable:
    """Returns the table of these columns as the method's objective gets it; gradients flow to its `logp`."""
    known = {name: torch.from_numpy(values) for name, values in columns.items()}
    for name in ("log_ratio", "ratio", *ON_DEMAND.keys() - needs_of(method.objective)):
        del known[name]
    table = table_of(
        known.pop("logp").clone().requires_grad_(),
        known.pop("behaviour_logp"),
        known.pop("proximal_logp"),
        **known,
    )
    bounds = deepcopy(method.bounds).choose([table.detach()])  # one with a memory must not keep this table
    table = table.with_bounds(bounds.low.double(), bounds.high.double())
    return with_own_columns(table, method)


def with_own_columns(table: TokenTable, method: Algorithm) -> TokenTable:
    """Returns the table with what the method's objective prepares of it, which remembers nothing."""
    objective, seen = method.objective, table.detach()
    if remembers(objective):
        return table.with_columns(objective.remember(seen, objective.past)[0])
    return table.with_columns(objective.prepare(seen)) if prepares(objective) else table


def columns_with_bounds(columns: Columns, method: Algorithm) -> Columns:
    """Returns the columns with the bounds of the method, which a reference may use."""
    table = table_from(columns, method)
    return columns | {name: getattr(table, name).numpy() for name in ("low", "high")}


def gradient(table: TokenTable, method: Algorithm) -> Tensor:
    """Returns d(sum_t weight_t objective_t) / d logp_t, [N]."""
    (found,) = torch.autograd.grad((table.weight * method.objective(table)).sum(), table.logp)
    return found


def gap(found: Array, expected: Array, columns: Columns) -> float:
    """Returns the largest difference, relative to the expected number plus the token's weight."""
    return float((np.abs(found - expected) / (np.abs(expected) + columns["weight"])).max())


def against_reference(method: Algorithm, reference: Reference, seed: int) -> float:
    columns = random_columns(seed)
    found = gradient(table_from(columns, method), method).numpy()
    return gap(found, reference.gradient(columns_with_bounds(columns, method)), columns)


def at_one(method: Algorithm, reference: Reference, seed: int) -> float | str:
    """Returns how far the gradient is from what it must be where all ratios are 1; or why it can be anything
    there.
    """
    if isinstance(reference.at_one, str):
        return reference.at_one
    columns = random_columns(seed, at_one=True)
    found = gradient(table_from(columns, method), method).numpy()
    return gap(found, reference.at_one(columns_with_bounds(columns, method)), columns)


def against_differences(method: Algorithm, seed: int) -> float:
    """Returns how far the gradient is from finite differences of the objective, whose detached numbers stay
    those of the table itself.
    """
    columns = random_columns(seed)
    table = table_from(columns, method)
    detached: list[Tensor] = []
    with _detach(lambda value: detached.append(value) or value):  # type: ignore[func-returns-value]
        (found,) = torch.autograd.grad((table.weight * method.objective(table)).sum(), table.logp)

    def moved(token: int, step: float) -> Tensor:
        logp = table.logp.detach().clone()
        logp[token] += step
        frozen = iter(detached)
        made = TokenTable(**{**vars(table.detach()), "logp": logp}).relative_to(table.proximal_logp)
        with _detach(lambda value: next(frozen)):
            return method.objective(made)

    expected = [
        float((table.weight * (moved(token, STEP) - moved(token, -STEP))).sum()) / (2 * STEP)
        for token in range(len(found))
    ]
    return gap(found.numpy(), np.array(expected), columns)


@contextmanager
def _detach(kept: Callable[[Tensor], Tensor]) -> Iterator[None]:
    real = torch.Tensor.detach
    with mock.patch.object(torch.Tensor, "detach", lambda tensor: kept(real(tensor))):
        yield


def against_slopes(method: Algorithm, seeds: tuple[int, int]) -> float:
    """Returns how far the gradients of two tables are from their slopes, which torch.vmap takes of both at
    once, as the exact worlds do.
    """
    every = [random_columns(seed) for seed in seeds]
    tables = [table_from(columns, method).detach() for columns in every]
    names = list(tables[0].columns)
    stacked = [torch.stack([table.columns[name] for table in tables]) for name in names]

    def one(*columns: Tensor) -> Tensor:
        table = with_own_columns(TokenTable.of(dict(zip(names, columns, strict=True))), method)
        return table.weight * slopes(method.objective, table) * table.ratio

    expected = [gradient(table_from(columns, method), method).numpy() for columns in every]
    return max(map(gap, torch.vmap(one)(*stacked).numpy(), expected, every))


def over_merged_rows(method: Algorithm, seed: int) -> float:
    """Returns how far the gradient of rows that stand for several certain tokens, as in exact worlds, is from
    the sum over rows of one token.
    """
    merged = random_columns(seed)
    last = np.append(merged["sequence"][1:] != merged["sequence"][:-1], True)
    certain = ("logp", "log_ratio", "behaviour_logp", "proximal_logp", "entropy")
    certain += ("entry_entropy", "mean_logp", "entry_mean_logp")
    merged |= {name: np.where(last, 0.0, merged[name]) for name in certain}
    merged["ratio"] = np.where(last, 1.0, merged["ratio"])
    times = np.where(last, np.random.default_rng(seed).integers(1, 7, len(last)), 1)
    single = {name: np.repeat(values, times, axis=0) for name, values in merged.items()}
    first = np.cumsum(times) - times
    single["position"] += np.arange(len(single["position"])) - np.repeat(first, times)
    merged |= {"count": times.astype(float), "weight": merged["weight"] * times}
    found, expected = (gradient(table_from(columns, method), method).numpy() for columns in (merged, single))
    return gap(found, np.add.reduceat(expected, first), merged)
