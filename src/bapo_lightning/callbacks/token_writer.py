"""What single tokens looked like in an update, for figures that no mean can make."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import lightning as L
from torch import Tensor

from bapo_lightning.callbacks.order import Order
from bapo_lightning.data.batches.batch import TrainBatch
from bapo_lightning.modules.token_table import TokenTable
from bapo_lightning.run_folder.journal import Journal
from bapo_lightning.run_folder.token_records import TOKEN_FILE
from bapo_lightning.values import CountOrZero

_DIGITS = 5  # significant ones; more only make the file longer


class TokenWriter(L.Callback):
    """Appends the tokens of every so many updates to `tokens.jsonl`, one line an update: importance ratios,
    probabilities under the policy that was trained and under the one that sampled, entropies in nats,
    advantages, ages in updates.
    """

    order: ClassVar[Order] = Order.WRITE

    def __init__(self, folder: str, every: CountOrZero) -> None:
        """
        Args:
            folder: run folder.
            every: updates between two writes; 0 writes nothing.
        """
        self._journal = Journal(Path(folder, TOKEN_FILE))
        self.every = every

    def on_train_batch_end(
        self,
        trainer: L.Trainer,
        pl_module: L.LightningModule,
        outputs: Any,
        batch: TrainBatch,
        batch_idx: int,
    ) -> None:
        """Write on the last of every `every` updates; the leader has the tokens of all ranks."""
        if self.every and (batch_idx + 1) % self.every == 0 and outputs["tokens"] is not None:
            self._journal.append(
                [{"step": batch_idx, **token_columns(outputs["tokens"], outputs["version"])}]
            )


def token_columns(tokens: TokenTable, version: int) -> dict[str, list[float]]:
    """One list per column, all of length N; `version` is of the policy that was trained."""
    columns: dict[str, Tensor] = {
        "ratio": tokens.ratio,
        "probability": tokens.logp.exp(),
        "behaviour_probability": tokens.behaviour_logp.exp(),
        "entropy": tokens.entropy,
        "advantage": tokens.advantage,
        "age": version - tokens.version,
    }
    return {
        name: [float(f"{value:.{_DIGITS}g}") for value in column.tolist()] for name, column in columns.items()
    }
