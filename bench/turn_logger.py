"""Our side of `against_trl.py`: a logger of an ordinary training run that ends its turn after each cycle of
updates.
"""

from __future__ import annotations

from typing import Any

from lightning.pytorch.loggers import Logger
from turns import Turns

ROLLOUT_PARTS = ("time/rollout_seconds", "time/reward_seconds", "time/sync_seconds")


class TurnLogger(Logger):
    """Logger added by `+logger.turns._target_=turn_logger.TurnLogger`. A reported cycle includes all work of
    the run.
    """

    def __init__(self, updates: int) -> None:
        """`updates` is the number of updates on each rollout batch, one cycle."""
        super().__init__()
        self._updates = updates
        self._turns = Turns()
        self._rollout = 0.0

    @property
    def name(self) -> str:
        """Name of the logger for Lightning."""
        return "turns"

    @property
    def version(self) -> str:
        """Version of the logger for Lightning."""
        return ""

    def log_hyperparams(self, *args: Any, **kwargs: Any) -> None:
        """Does nothing."""

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        """Ends the turn when the last update of a cycle is logged. The first update of a cycle carries the
        cost of its rollouts.
        """
        assert step is not None
        if step % self._updates == 0:
            self._rollout = sum(metrics[part] for part in ROLLOUT_PARTS)
            self._tokens, self._samples = metrics["rollout/num_tokens"], metrics["rollout/num_samples"]
        if (step + 1) % self._updates == 0:
            self._turns.hand_over(
                {"rollout": self._rollout, "tokens": self._tokens, "samples": self._samples}
            )
