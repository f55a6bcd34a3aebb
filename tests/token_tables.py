"""Token tables from a few columns; the others are those of tokens without a past."""

import torch

from bapo_lightning.objectives.token_table import ON_DEMAND, TokenTable, table_of


def table(advantages, ratio=1.0, **columns):
    """Returns a table with these advantages and importance ratios, each token a response and a group of its
    own; `columns` are other columns of the table, `prepared` those of an objective, or numbers for all
    tokens. Numbers are float64 where the advantages are.
    """
    advantage = torch.as_tensor(advantages)
    size, dtype = advantage.shape, advantage.dtype

    def column(value):
        found = torch.as_tensor(value)
        if found.is_floating_point():
            found = found.to(dtype)
        return found if found.dim() > 1 else found.expand(size).clone()

    behaviour_logp = column(columns.pop("behaviour_logp", -1.0))
    logp = column(columns.pop("logp", behaviour_logp + column(ratio).log()))
    number = torch.arange(len(advantage))
    known = {
        "entropy": 1.0, "age": 0, "sequence": number, "group": number, "position": 0, "origin": 0,
        "count": 1.0, "weight": 1.0,
    }  # fmt: skip
    bounds = {name: column(columns.pop(name)) for name in ("low", "high") if name in columns}
    proximal_logp, age_at_entry = (columns.pop(name, None) for name in ("proximal_logp", "age_at_entry"))
    prepared = columns.pop("prepared", {})
    made = table_of(
        logp,
        behaviour_logp,
        None if proximal_logp is None else column(proximal_logp),
        None if age_at_entry is None else column(age_at_entry),
        advantage=advantage,
        **{name: column(columns.pop(name, value)) for name, value in known.items()},
        **{name: column(columns.pop(name)) for name in ON_DEMAND if name in columns},
    )
    assert not columns, f"no column of a table: {', '.join(columns)}"
    made = made.with_bounds(bounds.get("low", made.low), bounds.get("high", made.high))
    return made.with_columns({name: column(value) for name, value in prepared.items()})


class Recording(TokenTable):
    """A table that keeps the names of the columns that were read."""

    def __init__(self, columns):
        vars(self).update(_columns=columns, read=set())

    def __getattr__(self, name):
        self.read.add(name)
        return self._columns[name]

    def __getitem__(self, name):
        return getattr(self, name)
