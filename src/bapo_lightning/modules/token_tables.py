"""Token tables of micro-batches, and joint tables of all ranks."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch
import torch.distributed as dist
from lightning import Trainer
from torch import Tensor

from bapo_lightning.data.batches.batch import MicroBatch
from bapo_lightning.modules.token_scores import SCORES
from bapo_lightning.objectives.bounds import BoundSearch
from bapo_lightning.objectives.objective import CANDIDATES, Objective, prepares
from bapo_lightning.objectives.token_table import (
    INTEGERS,
    NAMES,
    StepScale,
    TokenTable,
    concatenate,
    name_of,
    needed_by,
    table_for,
    table_of,
)
from bapo_lightning.system.ranks.collectives import from_controller, gather_rows, max_over_ranks, num_ranks
from bapo_lightning.types import Origin

OUTPUTS = (*SCORES, "log_z", "candidate_logp")  # of a policy
ON_GRAPH = frozenset({*OUTPUTS, "log_ratio", "ratio"})  # columns through which gradients may flow
SAY_SO = ("lightning.", "bapo_lightning.")  # modules whose callbacks declare the columns that they read
# micro-batch -> the first of `OUTPUTS` for its response tokens, each [N] or None, in nats
Scorer = Callable[[MicroBatch], tuple[Tensor | None, ...]]


def token_table(policy: Scorer, micro_batch: MicroBatch, version: int) -> TokenTable:
    """Returns the table of a micro-batch's tokens, with their scores by a policy of this version."""
    outputs = zip(OUTPUTS, policy(micro_batch), strict=False)
    scores = {name: values for name, values in outputs if values is not None}
    known = dict(micro_batch.scores)
    if "candidate_logp" not in scores:
        known.pop("candidate_behaviour_logp", None)
    return table_of(
        scores.pop("logp"),
        micro_batch.behaviour_logp,
        micro_batch.proximal_logp,
        **scores,
        **known,
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


def columns_read(trainer: Trainer) -> frozenset[str]:
    """Returns the columns that callbacks read after an update: the ones in their `needs`, and all columns if
    a foreign callback declares none. Lightning's own read no table. Raises ConfigError for unknown columns.
    """
    columns: frozenset[str] = frozenset()
    for callback in trainer.callbacks:  # type: ignore[attr-defined]
        says_so = callback.on_train_batch_end.__module__.startswith(SAY_SO)
        columns |= needed_by(callback, () if says_so else NAMES)
    return columns


def gather_tables(tables: Sequence[TokenTable], columns: Collection[str]) -> TokenTable | None:
    """Returns the table of all ranks' minibatch on the controller (rank 0), whose own share is never empty,
    and None on workers. Every rank must call it; the controller's choice of `columns` holds. If they include
    all regular columns, those on demand are added.
    """
    wanted = set(columns)
    if wanted.issuperset(NAMES):
        wanted |= {name for table in tables[:1] for name in table.more} - CANDIDATES
    columns_here, _ = _gathered(tables, from_controller(sorted(wanted)), to_all_ranks=False)
    return None if columns_here is None else table_for("a callback", columns_here)


def gather_columns(
    reader: Callable[[TokenTable], Any], tables: Sequence[TokenTable], device: torch.device
) -> tuple[TokenTable, int]:
    """Returns the columns that a function reads from the table of all ranks' minibatch, and the first of this
    rank's rows. Every rank must call it with its micro-batches' tables, which may be none.
    """
    gathered, start = _gathered(tables, sorted(needed_by(reader)), to_all_ranks=True)
    assert gathered is not None
    return table_for(name_of(reader), {name: gathered[name].to(device) for name in gathered}), start


def _gathered(
    tables: Sequence[TokenTable], names: Sequence[str], to_all_ranks: bool
) -> tuple[dict[str, Tensor] | None, int]:
    """Returns columns of all ranks' tables in rank order, if gathered here, and this rank's first row.

    They pass through the host in one collective, as the 32 bits of each number (which are enough for an id),
    or as 64 if a policy computes in float64.
    """
    if num_ranks() == 1:
        return concatenate(tables, names), 0
    local = concatenate(tables, names) if tables else dict.fromkeys(names, torch.empty(0))
    is_wide = max_over_ranks(int(any(local[name].dtype is torch.float64 for name in names)))
    real, word = (torch.float64, torch.int64) if is_wide else (torch.float32, torch.int32)
    bits = [local[name].to(word) if name in INTEGERS else local[name].to(real).view(word) for name in names]
    parts = gather_rows(torch.stack(bits).cpu(), to_all_ranks)
    if parts is None:
        return None, 0
    rows = torch.cat(parts, dim=1).to(bits[0].device)
    gathered = {
        name: row.long() if name in INTEGERS else row.view(real).to(local[name].dtype)
        for name, row in zip(names, rows, strict=True)
    }
    return gathered, sum(part.shape[1] for part in parts[: dist.get_rank()])


def prepared_for_update(
    objective: Objective, tables: Sequence[TokenTable], bounds: BoundSearch, num_micro_batches: int
) -> list[dict[str, Tensor]]:
    """Returns the columns that an objective prepares for each of this rank's micro-batches: [N], or 0-dim
    for a blank one, which has no table. Every rank must call it.
    """
    parts: list[dict[str, Tensor]] = [{} for _ in range(num_micro_batches)]
    if not prepares(objective):
        return parts
    tables = [table.detach().with_bounds(bounds.low, bounds.high) for table in tables]
    whole, start = gather_columns(objective.prepare, tables, bounds.low.device)
    sizes = [len(table.ratio) for table in tables]
    for name, values in objective.prepare(whole).items():
        pieces = values[start : start + sum(sizes)].split(sizes) if tables and values.dim() else ()
        for number, part in enumerate(parts):
            # Blank tokens have no weight; any finite value will do.
            part[name] = pieces[number] if number < len(pieces) else values.reshape(-1)[0]
    return parts


def step_scale_of_update(step_scale: StepScale | None, tables: Sequence[TokenTable]) -> float:
    """Returns the factor of the update's learning rate, 1 without a rule. Every rank must call it, with the
    tables of its micro-batches, which may be none.
    """
    if step_scale is None:
        return 1.0
    device = tables[0].logp.device if tables else torch.device("cpu")
    return float(step_scale(gather_columns(step_scale, tables, device)[0]))
