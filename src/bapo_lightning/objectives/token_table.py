"""The tokens of an update as columns, which bound rules, objectives, corrections and monitors read.

table ---- proximal, correction ----> ratio to the proximal policy, weights
|
+------- bound rule --------------> low, high       once for the whole update
+------- prepare -----------------> more columns    once for the whole update, if the objective prepares some
|
+------- objective ---------------> objective of every token, to be maximised
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor

from bapo_lightning.objectives.surrogate import limited_log_ratio
from bapo_lightning.system.errors import ConfigError, TrainingError, suggestion
from bapo_lightning.types import Origin


@dataclass(frozen=True)
class TokenTable:
    """One row per response token. All columns are [N]; columns in `INTEGERS` are int64, others float32.

    Gradients flow through `logp`, `log_ratio`, `ratio`, `log_z` and `candidate_logp`, and through `entropy`
    if the objective needs `entropy_gradient`. Rows of a response follow each other.
    """

    logp: Tensor  # nats, current policy at the sampling temperature
    log_ratio: Tensor  # nats, logp - proximal_logp, limited; has the gradient of logp
    ratio: Tensor  # pi / pi_proximal, which is pi / pi_behaviour without a correction
    entropy: Tensor  # nats, of the current policy's next-token distribution
    behaviour_logp: Tensor  # nats
    proximal_logp: Tensor  # nats, of the policy in the ratio's denominator
    age: Tensor  # updates between the version that sampled the token and the trained version
    age_at_entry: Tensor  # age when the token's batch entered training
    sequence: Tensor  # number of the token's response in the minibatch
    group: Tensor  # number of the token's group
    position: Tensor  # tokens of the response before it, including tokens too old to be trained on
    origin: Tensor  # `types.Origin` of the token's response
    count: Tensor  # number of tokens that the row stands for: 1, except in exact worlds
    advantage: Tensor
    weight: Tensor  # the token's share of the global minibatch's mean, times its correction
    correction: Tensor  # factor in it that corrects the gap between engine and trainer; 1 without one
    low: Tensor  # lower bound of the ratio; 0 until bounds are chosen
    high: Tensor  # upper bound of the ratio; infinite until then
    slope: Tensor  # d objective / d ratio: the advantage until the objective has cut it
    # Other columns by name, `table["log_z"]`: needed ones of `ON_DEMAND`, and ones the objective prepared.
    more: Mapping[str, Tensor] = field(default_factory=dict)

    def __getitem__(self, name: str) -> Tensor:
        """Column that not every table has, [N]. Raises TrainingError if it is missing."""
        if name not in self.more:
            raise TrainingError(
                f"the token table has no column {name}; an objective that reads it must list it in its "
                "`needs`, or return it from `prepare`"
            )
        return self.more[name]

    @classmethod
    def of(cls, columns: Mapping[str, Tensor]) -> TokenTable:
        """Makes a table from all its columns by name, see `columns`."""
        fixed = {name: columns[name] for name in NAMES}
        return TokenTable(**fixed, more={name: columns[name] for name in columns if name not in fixed})

    @property
    def columns(self) -> dict[str, Tensor]:
        """All columns by name."""
        return {**{name: getattr(self, name) for name in NAMES}, **self.more}

    @property
    def is_sampled(self) -> Tensor:
        """Whether `behaviour_logp` comes from a policy version at the run's temperature, [N] bool."""
        return self.origin <= Origin.REPLAYED

    def detach(self) -> TokenTable:
        """Returns the same numbers without the graph."""
        return TokenTable.of({name: values.detach() for name, values in self.columns.items()})

    def only(self, columns: Iterable[str], reader: str) -> TokenTable:
        """Returns a table of only these columns for the reader's name, of all if they include all `NAMES`."""
        known, wanted = self.columns, frozenset(columns)
        if not wanted.issuperset(NAMES):
            known = {name: known[name] for name in wanted}
        return table_for(reader, known)

    def relative_to(self, proximal_logp: Tensor) -> TokenTable:
        """Returns a table with ratios to another policy, given its log-probs [N] in nats."""
        log_ratio = limited_log_ratio(self.logp, proximal_logp)
        return replace(self, proximal_logp=proximal_logp, log_ratio=log_ratio, ratio=log_ratio.exp())

    def corrected(self, correction: Tensor) -> TokenTable:
        """Returns a table with every weight multiplied by a factor, [N]. Weights are not renormalised, so
        masking a token does not upweight the others.
        """
        return replace(self, weight=self.weight * correction, correction=correction)

    def with_bounds(self, low: Tensor, high: Tensor) -> TokenTable:
        """Returns a table with bounds, 0-dim or [N]."""
        return replace(self, low=low.expand_as(self.ratio), high=high.expand_as(self.ratio))

    def with_columns(self, columns: Mapping[str, Tensor]) -> TokenTable:
        """Returns a table with more columns, each 0-dim or [N]."""
        added = {name: values.expand_as(self.ratio) for name, values in columns.items()}
        return replace(self, more={**self.more, **added})


def table_of(
    logp: Tensor,
    behaviour_logp: Tensor,
    proximal_logp: Tensor | None = None,
    age_at_entry: Tensor | None = None,
    **known: Tensor,
) -> TokenTable:
    """Returns a table without correction, bounds and prepared columns.

    Args:
        logp: log-probs under the current policy, [N], nats.
        behaviour_logp: log-probs under the policy that sampled, [N].
        proximal_logp: log-probs that ratios are relative to, [N]; None: `behaviour_logp`.
        age_at_entry: ages, [N]; None: `age`, as in the first update on a batch.
        known: entropy, age, sequence, group, position, count, advantage and weight, each [N]; origin, if not
            all tokens were sampled from the policy for this batch; and available columns of `ON_DEMAND`.
    """
    proximal_logp = behaviour_logp if proximal_logp is None else proximal_logp
    log_ratio = limited_log_ratio(logp, proximal_logp)
    like = known["weight"]
    known.setdefault("origin", torch.zeros_like(known["sequence"]))
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
        slope=known["advantage"],
        more={name: known.pop(name) for name in ON_DEMAND if name in known},
        **known,
    )


NAMES = tuple(each.name for each in fields(TokenTable) if each.name != "more")
INTEGERS = frozenset({"age", "age_at_entry", "sequence", "group", "position", "origin", "step"})
# Columns that a table has only if its objective needs them.
ON_DEMAND = {
    "entry_entropy": "nats, entropy of the policy when the batch entered training",
    "mean_logp": "nats, mean over the vocabulary of the current policy's log-probs",
    "entry_mean_logp": "nats, the same for the policy when the batch entered training",
    "reference_logp": "nats, log-prob under the weights that the run began with",
    "log_z": "a trained head's estimate for the response's prompt, one number per response",
    "step": "number of the token's step within its response",
    "candidate_logp": "nats, [N, K], of the tokens that the engine recorded at this place; gradients flow",
    "candidate_behaviour_logp": "nats, [N, K], of the same tokens when they were sampled",
}


class SomeColumns(TokenTable):
    """Some columns of a table; reading another column raises a TrainingError that names the reader."""

    def __init__(self, reader: str, columns: Mapping[str, Tensor]) -> None:
        more = {name: values for name, values in columns.items() if name not in NAMES}
        fixed = {name: values for name, values in columns.items() if name in NAMES}
        vars(self).update(fixed, more=more, _reader=reader)

    def __getattr__(self, name: str) -> Tensor:
        if name not in NAMES:
            raise AttributeError(name)
        raise self._missing_column(name)

    @property
    def columns(self) -> dict[str, Tensor]:
        """The available columns by name."""
        available = vars(self)
        return {**{name: available[name] for name in NAMES if name in available}, **self.more}

    def __getitem__(self, name: str) -> Tensor:
        if name not in self.more:
            raise self._missing_column(name)
        return self.more[name]

    def _missing_column(self, name: str) -> TrainingError:
        return TrainingError(
            f"{vars(self)['_reader']} reads the column {name} of the token table without declaring it; add "
            "it to its `needs`"
        )


def table_for(reader: str, columns: Mapping[str, Tensor]) -> TokenTable:
    """Returns a table of these columns for the reader's name, a whole one if they include all `NAMES`."""
    return TokenTable.of(columns) if columns.keys() >= set(NAMES) else SomeColumns(reader, columns)


def needed_by(reader: Any, unsaid: Iterable[str] = NAMES) -> frozenset[str]:
    """Returns the columns that a function of the table, possibly with options, or a callback `needs`;
    `unsaid` if it declares none. Raises ConfigError for a column that does not exist.
    """
    needs = frozenset(getattr(without_options(reader), "needs", unsaid))
    known = (*NAMES, *ON_DEMAND)
    for name in sorted(needs.difference(known)):
        problem = (
            f"{name_of(reader)}.needs has {name}, not a column of the token table: {suggestion(name, known)}"
        )
        raise ConfigError([problem])
    return needs


def name_of(reader: Any) -> str:
    """Returns the name of a function or method, possibly with options, or of an object's class."""
    plain = without_options(reader)
    owner = getattr(plain, "__self__", None)
    if owner is not None:
        return f"{type(owner).__name__}.{plain.__name__}"
    return str(getattr(plain, "__name__", type(reader).__name__))


Marked = TypeVar("Marked", bound=Callable[..., Any])


def reads(*columns: str) -> Callable[[Marked], Marked]:
    """Marks a function of the table with the columns that it needs: an objective with columns that not every
    table has; a function of the whole update's table with all columns, since ranks exchange no others for it.
    """

    def mark(function: Marked) -> Marked:
        function.needs = frozenset(columns)  # type: ignore[attr-defined]
        return function

    return mark


# All take a table without graph; `StepScale` takes the table of the whole update.
Correction = Callable[[TokenTable], Tensor]  # factor of each weight, [N]
Proximal = Callable[[TokenTable], Tensor]  # log pi_proximal, [N] nats
StepScale = Callable[[TokenTable], Tensor]  # factor of the learning rate, 0-dim


def without_options(function: Any) -> Any:
    """Returns a function without the arguments of its partials."""
    while isinstance(function, partial):
        function = function.func
    return function


def concatenate(tables: Sequence[TokenTable], columns: Iterable[str]) -> dict[str, Tensor]:
    """Returns columns of a whole minibatch from the tables of its micro-batches."""

    def whole(name: str) -> Tensor:
        parts = [getattr(table, name) if name in NAMES else table[name] for table in tables]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    return {name: whole(name) for name in columns}
