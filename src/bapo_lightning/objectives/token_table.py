"""The tokens of an update as columns: what a bound rule, an objective, a correction or a monitor may know.

table ---- proximal, correction ----> ratio to the proximal policy, weights
|
+------- bound rule --------------> low, high       once for the whole update
+------- statistic ---------------> statistic       once for the whole update
|
+------- objective ---------------> objective of every token, to be maximised
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any, Literal, Protocol, TypeGuard, TypeVar

import torch
from torch import Tensor

from bapo_lightning.errors import ConfigError, TrainingError, taken
from bapo_lightning.objectives.surrogate import limited_log_ratio
from bapo_lightning.types import Origin


@dataclass(frozen=True)
class TokenTable:
    """One row per response token; all fields have shape [N], those of `INTEGERS` int64 and others float32.

    Gradients flow through `logp`, `log_ratio`, `ratio` and `log_z`, and through `entropy` where the objective
    `needs_entropy_gradient`. Rows of a response follow each other.
    """

    logp: Tensor  # nats, current policy at the sampling temperature
    log_ratio: Tensor  # nats, logp - proximal_logp, limited; its gradient is that of logp
    ratio: Tensor  # pi / pi_proximal, which is pi / pi_behaviour unless there is a correction
    entropy: Tensor  # nats, of the current policy's next-token distribution
    entry_entropy: Tensor  # the same of the policy when its batch entered training; NaN unless needed
    mean_logp: Tensor  # nats, mean over the vocabulary of the current policy's log-probs; NaN unless needed
    entry_mean_logp: Tensor  # the same of the policy when its batch entered training
    behaviour_logp: Tensor  # nats
    proximal_logp: Tensor  # nats, of what the ratio is taken to
    reference_logp: Tensor  # nats, of the policy that the run began with; NaN unless `needs_reference`
    log_z: Tensor  # estimate for the response's prompt, one number per response; NaN unless `needs_log_z`
    age: Tensor  # updates between the version that sampled the token and the one that is trained
    age_at_entry: Tensor  # the same when its batch entered training
    sequence: Tensor  # number of the token's response in the minibatch
    group: Tensor  # number of its group
    position: Tensor  # tokens of the response before it, those too old to be trained on included
    origin: Tensor  # `types.Origin` of its response
    step: Tensor  # number of the token's step within its response; 0 where there are no steps
    count: Tensor  # tokens that the row stands for: 1, except in exact worlds
    advantage: Tensor
    weight: Tensor  # the token's share of the global minibatch's mean, times its correction
    correction: Tensor  # the factor in it that makes up for the gap of engine and trainer; 1 without one
    low: Tensor  # lower bound of the ratio; 0 until bounds are chosen
    high: Tensor  # upper bound of the ratio; infinite until then
    statistic: Tensor  # per-update statistic that the objective needs; NaN where it needs none
    slope: Tensor  # d objective / d ratio: the advantage, until the objective has cut it

    @property
    def is_sampled(self) -> Tensor:
        """Whether `behaviour_logp` is that of a policy version at the temperature of the run, [N] bool."""
        return self.origin <= Origin.REPLAYED

    def detach(self) -> TokenTable:
        """Returns the same numbers without the graph."""
        return TokenTable(*(getattr(self, name).detach() for name in NAMES))

    def only(self, columns: Iterable[str], reader: str) -> TokenTable:
        """Returns the table with these columns alone, for a reader of this name."""
        return SomeColumns(reader, **{name: getattr(self, name) for name in columns})

    def relative_to(self, proximal_logp: Tensor) -> TokenTable:
        """Returns the table with ratios to another policy, given its log-probs [N] in nats."""
        log_ratio = limited_log_ratio(self.logp, proximal_logp)
        return replace(self, proximal_logp=proximal_logp, log_ratio=log_ratio, ratio=log_ratio.exp())

    def corrected(self, correction: Tensor) -> TokenTable:
        """Returns the table with a factor for every weight, [N]. Weights are not renormalised, so masking a
        token does not upweight the others.
        """
        return replace(self, weight=self.weight * correction, correction=correction)

    def with_bounds(self, low: Tensor, high: Tensor) -> TokenTable:
        """Returns the table with bounds, 0-dim or [N]."""
        return replace(self, low=low.expand_as(self.ratio), high=high.expand_as(self.ratio))

    def with_statistic(self, statistic: Tensor) -> TokenTable:
        """Returns the table with a statistic, 0-dim or [N]."""
        return replace(self, statistic=statistic.expand_as(self.ratio))

    def with_slopes(self, objective: Objective) -> TokenTable:
        """Returns the table with the slopes of an objective."""
        return replace(self, slope=slopes(objective, self))


def table_of(
    logp: Tensor,
    behaviour_logp: Tensor,
    proximal_logp: Tensor | None = None,
    age_at_entry: Tensor | None = None,
    **known: Tensor,
) -> TokenTable:
    """Returns a table without correction, bounds and statistic.

    Args:
        logp: log-probs under the current policy, [N], nats.
        behaviour_logp: log-probs under the policy that sampled, [N].
        proximal_logp: log-probs that ratios are relative to, [N]; None: `behaviour_logp`.
        age_at_entry: ages, [N]; None: `age`, as in the first update on a batch.
        known: entropy, age, sequence, group, position, count, advantage and weight, each [N]; origin, if not
            all were sampled from the policy for this batch; step, if responses have steps; and what
            objectives need of the entry, of the reference and of log Z.
    """
    proximal_logp = behaviour_logp if proximal_logp is None else proximal_logp
    log_ratio = limited_log_ratio(logp, proximal_logp)
    like = known["weight"]
    for name in ("origin", "step"):
        known.setdefault(name, torch.zeros_like(known["sequence"]))
    for name in ("entry_entropy", "mean_logp", "entry_mean_logp", "reference_logp", "log_z"):
        known.setdefault(name, torch.full_like(like, torch.nan))
    return TokenTable(
        logp=logp,
        log_ratio=log_ratio,
        ratio=log_ratio.exp(),
        behaviour_logp=behaviour_logp,
        proximal_logp=proximal_logp,
        age_at_entry=known["age"] if age_at_entry is None else age_at_entry,
        correction=torch.ones_like(like),
        low=torch.zeros_like(like),
        high=torch.full_like(like, torch.inf),
        statistic=torch.full_like(like, torch.nan),
        slope=known["advantage"],
        **known,
    )


NAMES = tuple(field.name for field in fields(TokenTable))
INTEGERS = frozenset({"age", "age_at_entry", "sequence", "group", "position", "origin", "step"})


class SomeColumns(TokenTable):
    """Some columns of a table; reading another one is a TrainingError that names the reader."""

    def __init__(self, reader: str = "the reader", **columns: Tensor) -> None:
        vars(self).update(columns, _reader=reader)

    def __getattr__(self, name: str) -> Tensor:
        if name not in NAMES:
            raise AttributeError(name)
        raise TrainingError(
            f"{vars(self)['_reader']} reads the column {name} of the token table without asking for it; add "
            "it to its `needs`"
        )


def needed_by(reader: Any, unsaid: Iterable[str] = NAMES) -> frozenset[str]:
    """Returns the columns that a function of the table, maybe with options, or a callback `needs`.

    Args:
        reader: function or callback, with or without the attribute.
        unsaid: columns that a reader without it may read.

    Raises:
        ConfigError: it needs a column that does not exist.
    """
    found = frozenset(getattr(_plain(reader), "needs", unsaid))
    for name in sorted(found.difference(NAMES)):
        raise ConfigError(
            [f"{name_of(reader)}.needs has {name}, no column of the token table: {taken(name, NAMES)}"]
        )
    return found


def name_of(reader: Any) -> str:
    """Returns the name of a function, maybe with options, or of an object's class."""
    return str(getattr(_plain(reader), "__name__", type(reader).__name__))


# table -> objective[N] to maximise
Objective = Callable[[TokenTable], Tensor]
# table of the whole update, without graph -> [N] or 0-dim: `TokenTable.statistic` of its tokens
Statistic = Callable[[TokenTable], Tensor]


class RememberingStatistic(Protocol):
    """A statistic that knows of the updates before. As an `nn.Module` it has `past` as a buffer, which
    checkpoints hold.
    """

    past: Tensor

    def remember(self, table: TokenTable, past: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the statistic, and what to remember in place of `past`."""
        ...


def remembers(statistic: object) -> TypeGuard[RememberingStatistic]:
    """Whether a statistic has a memory. From Python 3.12 on, `isinstance` does not see a module's buffers."""
    return hasattr(statistic, "past") and hasattr(statistic, "remember")


# table without graph -> factor of each weight, [N]
Correction = Callable[[TokenTable], Tensor]
# table without graph -> log pi_proximal[N], nats
Proximal = Callable[[TokenTable], Tensor]
# table of the whole update, without graph -> factor of its learning rate, 0-dim
StepScale = Callable[[TokenTable], Tensor]


def needs_entropy_gradient(objective: Objective) -> bool:
    """Returns whether gradients must flow through the entropy, which costs memory and time."""
    return _has(objective, "needs_entropy_gradient")


def needs_reference(objective: Any) -> bool:
    """Returns whether an objective, or the class of one, reads `reference_logp`: a second copy of the weights
    scores every rollout batch.
    """
    return _has(objective, "needs_reference")


def needs_log_z(objective: Any) -> bool:
    """Returns whether an objective, or the class of one, reads `log_z`: the policy gets a head for it."""
    return _has(objective, "needs_log_z")


def _has(objective: Any, name: str) -> bool:
    """Whether an attribute is set, of a function with some arguments given as well."""
    return bool(getattr(_plain(objective), name, False))


def _plain(function: Any) -> Any:
    """Returns a function without the arguments that were given to it."""
    while isinstance(function, partial):
        function = function.func
    return function


Scored = TypeVar("Scored", bound=Callable[..., Any])


def needs(*columns: str) -> Callable[[Scored], Scored]:
    """Marks a function of the whole update's table with the columns that it reads: ranks exchange no others
    for it.
    """

    def mark(function: Scored) -> Scored:
        function.needs = frozenset(columns)  # type: ignore[attr-defined]
        return function

    return mark


def scored_at_entry(*scores: Literal["entropy", "mean_logp"]) -> Callable[[Scored], Scored]:
    """Marks an objective that compares the policy with itself when the batch entered training.

    Each batch then passes through the trainer's model once more, when it enters training. Ratios do not
    change by that.

    Args:
        scores: scores to compare: `entropy`, for the column `entry_entropy`; `mean_logp`, for `mean_logp` and
            `entry_mean_logp`.
    """

    def mark(objective: Scored) -> Scored:
        objective.scores_at_entry = scores  # type: ignore[attr-defined]
        return objective

    return mark


def needs_at_entry(objective: object) -> tuple[str, ...]:
    """Returns the scores of which an objective, maybe with options, was marked by `scored_at_entry`."""
    return tuple(getattr(_plain(objective), "scores_at_entry", ()))


def slopes(objective: Objective, table: TokenTable) -> Tensor:
    """Returns d objective / d r of every token, [N]: A without clipping, 0 where the objective cuts the
    gradient.

    In an objective of whole responses it is that of the response's sum. Weights are left out: they are equal
    within a response, but for its correction.
    """

    def total(ratio: Tensor, log_ratio: Tensor) -> Tensor:
        return objective(replace(table, ratio=ratio, log_ratio=log_ratio)).sum()

    by_ratio, by_log_ratio = torch.func.grad(total, argnums=(0, 1))(
        table.ratio.detach(), table.log_ratio.detach()
    )
    return by_ratio + by_log_ratio / table.ratio.detach()


def concatenate(tables: Sequence[TokenTable], columns: Iterable[str] = NAMES) -> dict[str, Tensor]:
    """Returns columns of a whole minibatch from the tables of its micro-batches."""
    if len(tables) == 1:
        return {name: getattr(tables[0], name) for name in columns}
    return {name: torch.cat([getattr(table, name) for table in tables]) for name in columns}
