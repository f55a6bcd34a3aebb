"""Runs examples/trl_grpo_trainer.py beside the search and the loss of `reference.py` on the same tokens, in
TRL's environment; `make check-others`.

    .venv-trl/bin/python tests/others/check_trl.py

Each update's tokens are noted as the trainer scores them: all micro-batches before the first gradient, and
each once more for its own. The reference chooses bounds by the former and has the loss of the latter.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "examples"))
from trl_grpo_trainer import PolicyLossTrainer, trainer  # noqa: E402

from bapo_lightning import reference  # noqa: E402
from bapo_lightning.objectives.surrogate import clipped_surrogate  # noqa: E402
from bapo_lightning.objectives.token_table import TokenTable, table_of  # noqa: E402
from bapo_lightning.objectives.weighting import token_mean  # noqa: E402

UPDATES, TARGET, LIMIT = 20, 0.43, 1e-6
MICRO_BATCHES = (1, 2, 4)  # of an update


class Noting(PolicyLossTrainer):
    """Notes the columns of each scoring, and the loss and the bounds of each micro-batch."""

    def __init__(self, **named: Any) -> None:
        super().__init__(**named)
        self.ahead: list[dict[str, Tensor]] = []
        self.trained: list[dict[str, Tensor]] = []
        self.losses: list[Tensor] = []
        self.bounds: list[tuple[float, float]] = []

    def _columns(self, model: Any, inputs: Any) -> dict[str, Tensor]:
        columns = super()._columns(model, inputs)
        noted = self.trained if torch.is_grad_enabled() else self.ahead
        noted.append({name: values.detach() for name, values in columns.items()})
        return columns

    def _compute_loss(self, model: Any, inputs: Any) -> Tensor:
        loss = super()._compute_loss(model, inputs)
        low, high = (self._metrics["train"][f"bapo/clip_{side}"][-1] for side in ("low", "high"))
        self.losses.append(loss.detach())
        self.bounds.append((low, high))
        return loss


def tables(parts: Sequence[dict[str, Tensor]]) -> list[TokenTable]:
    """Token tables of an update's micro-batches, each token with its share of the update's mean."""
    masks = [part["mask"].bool() for part in parts]
    total = float(sum(mask.sum() for mask in masks))
    made = []
    for part, mask in zip(parts, masks, strict=True):
        rows = torch.arange(len(mask))[:, None].expand(mask.shape)[mask]
        advantage = part["advantages"][:, None].expand(mask.shape)[mask]
        known = {name: part[name][mask] for name in ("logp", "behaviour_logp", "entropy")}
        known |= dict.fromkeys(("age", "sequence", "group", "position"), rows)
        ones = torch.ones_like(advantage)
        weight = token_mean(mask, total)[mask]
        made.append(table_of(**known, advantage=advantage, weight=weight, count=ones))
    return made


def compare(micro_batches: int) -> tuple[int, float, int]:
    """Trains; returns in how many updates the bounds are the reference's, to the bit, the largest difference
    of a micro-batch's loss, and how many different bounds there were.
    """
    with tempfile.TemporaryDirectory() as folder:
        sizes = {
            "per_device_train_batch_size": 128 // micro_batches,
            "gradient_accumulation_steps": micro_batches,
            "steps_per_generation": 4 * micro_batches,
        }
        target = (f"algorithm.positive_share_target={TARGET}",)
        made = trainer(folder, Noting, sizes, overrides=target)
        made.train()
    settings, same, gap = reference.Settings(target=TARGET), 0, 0.0
    for update in range(UPDATES):
        window = slice(update * micro_batches, (update + 1) * micro_batches)
        # One micro-batch is scored once: the pass before its gradient is that of its gradient.
        scored = made.ahead[window] if micro_batches > 1 else made.trained[window]
        bounds = reference.search(settings, tables(scored))
        same += set(made.bounds[window]) == {(float(bounds.low), float(bounds.high))}
        for table, loss in zip(tables(made.trained[window]), made.losses[window], strict=True):
            objective = clipped_surrogate(table.ratio, table.advantage, bounds.low, bounds.high)
            gap = max(gap, float((loss + (table.weight * objective).sum()).abs()))
    assert len(made.bounds) == UPDATES * micro_batches
    return same, gap, len(set(made.bounds))


def main() -> int:
    """Prints a row for each number of micro-batches; returns 1 if one is not as it should be."""
    torch.set_num_threads(1)
    failed = 0
    for micro_batches in MICRO_BATCHES:
        same, gap, different = compare(micro_batches)
        failed += same < UPDATES or gap > LIMIT or different < 3
        print(
            f"TRL, {micro_batches} micro-batches an update: bounds equal in {same} of {UPDATES} updates "
            f"({different} different pairs), losses within {gap:.0e}"
        )
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
