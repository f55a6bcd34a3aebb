"""Token tables of micro-batches, and those of all ranks together."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from bapo_lightning.data.batches.batch import MicroBatch
from bapo_lightning.modules.token_scores import SCORES
from bapo_lightning.objectives.bounds import BoundSearch
from bapo_lightning.objectives.token_table import (
    NAMES,
    Statistic,
    StepScale,
    TokenTable,
    concatenate,
    table_of,
)
from bapo_lightning.ranks.collectives import gather_on_controller, num_ranks
from bapo_lightning.types import Origin

OUTPUTS = (*SCORES, "log_z")  # of a policy
# micro-batch -> the first of `OUTPUTS` for its response tokens, each [N] or None, in nats
Scorer = Callable[[MicroBatch], tuple[Tensor | None, ...]]


def token_table(policy: Scorer, micro_batch: MicroBatch, version: int) -> TokenTable:
    """Scores a micro-batch with a policy of this version, and joins the scores with what is known of its
    tokens.
    """
    outputs = zip(OUTPUTS, policy(micro_batch), strict=False)
    scores = {name: values for name, values in outputs if values is not None}
    return table_of(
        scores.pop("logp"),
        micro_batch.behaviour_logp,
        micro_batch.proximal_logp,
        reference_logp=micro_batch.reference_logp,
        **scores,
        **{f"entry_{name}": values for name, values in micro_batch.entry_scores.items()},
        age=(version - micro_batch.version).masked_fill(micro_batch.origin == Origin.EXPERT, 0),
        age_at_entry=micro_batch.entry_version - micro_batch.version,
        sequence=micro_batch.sequence,
        group=micro_batch.group,
        position=micro_batch.position,
        origin=micro_batch.origin,
        step=micro_batch.step,
        count=torch.ones_like(micro_batch.weight),
        advantage=micro_batch.advantage,
        weight=micro_batch.weight,
    )


def gather_tables(tables: Sequence[TokenTable]) -> TokenTable | None:
    """Returns the table of all ranks' minibatch on the controller (rank 0), and None on workers.

    Every rank must call it with the tables of its own micro-batches. They pass through the host.
    """
    if num_ranks() == 1:
        return concatenate(tables)
    own = concatenate(tables) if tables else None
    parts = gather_on_controller(None if own is None else {name: getattr(own, name).cpu() for name in NAMES})
    if parts is None or own is None:  # the controller has the costliest share, which is never empty
        return None
    present, device = [part for part in parts if part is not None], own.logp.device
    return TokenTable(*(torch.cat([part[name] for part in present]).to(device) for name in NAMES))


def gather_everywhere(tables: Sequence[TokenTable]) -> tuple[TokenTable, int]:
    """Returns the table of all ranks' minibatch on every rank, and the row at which this rank's own begin.

    Every rank must call it with the tables of its own micro-batches, maybe none.
    """
    if num_ranks() == 1:
        return concatenate(tables), 0
    parts: list[dict[str, Tensor] | None] = [None] * num_ranks()
    own = concatenate(tables) if tables else None
    dist.all_gather_object(parts, None if own is None else {name: getattr(own, name).cpu() for name in NAMES})
    present = [part for part in parts if part is not None]
    device = torch.device("cpu") if own is None else own.logp.device
    before = sum(len(part["logp"]) for part in parts[: dist.get_rank()] if part is not None)
    return TokenTable(*(torch.cat([part[name] for part in present]).to(device) for name in NAMES)), before


def statistics_of_update(
    statistic: Statistic | None, tables: Sequence[TokenTable], bounds: BoundSearch, num_micro_batches: int
) -> list[Tensor]:
    """Returns what an objective knows of the whole update, for the tokens of each micro-batch: [N], or 0-dim
    for a blank micro-batch and where the objective needs nothing. Every rank must call it.

    Args:
        statistic: table of the whole update -> [N] or 0-dim.
        tables: of this rank's micro-batches.
        bounds: of the update.
        num_micro_batches: this rank's; those without a table are blank.
    """
    if statistic is None:
        return [torch.full((), torch.nan, device=bounds.low.device)] * num_micro_batches
    whole, start = gather_everywhere([table.detach().within(bounds.low, bounds.high) for table in tables])
    values = statistic(whole).expand_as(whole.ratio)
    sizes = [len(table.ratio) for table in tables]
    own = list(values[start : start + sum(sizes)].split(sizes)) if tables else []
    # Blank tokens weigh nothing; any finite value will do.
    return own + [values[0]] * (num_micro_batches - len(tables))


def step_scale_of_update(step_scale: StepScale | None, tables: Sequence[TokenTable]) -> float:
    """Returns the factor of the update's learning rate, 1 without a rule. Every rank must call it.

    Args:
        step_scale: table of the whole update -> factor, 0-dim.
        tables: of this rank's micro-batches, maybe none.
    """
    return 1.0 if step_scale is None else float(step_scale(gather_everywhere(tables)[0]))
