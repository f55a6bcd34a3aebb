"""Our side of `against_trl.py`: a logger of an ordinary training run that hands over after each cycle of
updates.
"""

from __future__ import annotations

from typing import Any

from lightning.pytorch.loggers import Logger
from turns import Turns

ROLLOUT_PARTS = ("time/rollout_seconds", "time/reward_seconds", "time/sync_seconds")


class TurnLogger(Logger):
    """Added by `+logger.turns._target_=turn_logger.TurnLogger`. All that the run itself does is inside the
    cycle that it reports.
    """

    def __init__(self, updates: int) -> None:
        """`updates` on each rollout batch: one cycle."""
        super().__init__()
        self._updates = updates
        self._turns = Turns()
        self._rollout = 0.0

    @property
    def name(self) -> str:
        """Lightning's name of the logger."""
        return "turns"

    @property
    def version(self) -> str:
        """Lightning's version of the logger."""
        return ""

    def log_hyperparams(self, *args: Any, **kwargs: Any) -> None:
        """Nothing."""

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        """Hand over when the last update of a cycle is logged. A cycle's first update carries what its
        rollouts cost.
        """
        assert step is not None
        if step % self._updates == 0:
            self._rollout = sum(metrics[part] for part in ROLLOUT_PARTS)
            self._tokens, self._samples = metrics["rollout/num_tokens"], metrics["rollout/num_samples"]
        if (step + 1) % self._updates == 0:
            self._turns.hand_over(
                {"rollout": self._rollout, "tokens": self._tokens, "samples": self._samples}
            )
