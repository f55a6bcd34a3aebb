"""Conversations of an update: turns, reports of the environment, and their share of the gradient."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

from lightning import LightningModule, Trainer

from bapo_lightning.callbacks.monitors.monitor import Metrics, Monitor, MonitoredUpdate, turn_numbers
from bapo_lightning.objectives.bounds import positive_shares
from bapo_lightning.objectives.token_table import needed_by
from bapo_lightning.types import FinishReason, Rollout

MOST_TURNS = 8  # that have a separate positive share
POSITIVE_SHARE = "positive_share"  # first part of the name, before the number of the turn


@dataclass(eq=False)
class TurnMonitor(Monitor):
    """Emits, if an environment answers the policy, `conversation_metrics` (without an expert's answers),
    `turns/positive_share_1`, `_2` and so on: `bapo/positive_share` of only the tokens of that turn; and the
    `metrics` of the environment's own, if it has such a method.
    """

    needs = frozenset[str]()  # until an environment is seen
    has_environment: bool = field(default=False, init=False)
    _environment: Any = field(default=None, init=False)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Looks up whether an environment answers; only ranks that sample have one."""
        sampler = getattr(trainer.datamodule, "sampler", None)  # type: ignore[attr-defined]
        talk = getattr(sampler, "conversations", None)
        self.has_environment, self._environment = talk is not None, getattr(talk, "environment", None)
        if self.has_environment:
            self.needs = needed_by(positive_shares) | {"sequence", "position"}

    def measure(self, update: MonitoredUpdate) -> Metrics:
        """Metrics of one update."""
        if not self.has_environment:
            return {}
        rollouts, weight = update.batch.rollouts, update.module.bound_rule.weight
        turn = turn_numbers(rollouts, update.tokens)
        most = min(MOST_TURNS, max(len(rollout.turns) for rollout in rollouts))
        hook = getattr(self._environment, "metrics", None)
        return {
            **(hook([reply for rollout in rollouts for reply in rollout.replies]) if callable(hook) else {}),
            **conversation_metrics([rollout for rollout in rollouts if rollout.aging_segments]),
            **{
                f"turns/{POSITIVE_SHARE}_{n + 1}": positive_shares(update.tokens, weight, turn == n)[0]
                for n in range(most)
            },
        }


def conversation_metrics(rollouts: Sequence[Rollout]) -> Metrics:
    """Means and shares over conversations; a share of nothing is left out."""
    if not rollouts:
        return {}
    turns = [len(rollout.turns) for rollout in rollouts]
    calls = sum(reply.calls for rollout in rollouts for reply in rollout.replies)
    errors = sum(reply.errors for rollout in rollouts for reply in rollout.replies)
    return {
        "turns/mean": fmean(turns),
        "turns/max": max(turns),
        "turns/calls_mean": calls / len(rollouts),
        **({"turns/error_share": errors / calls} if calls else {}),
        "turns/void_share": fmean(any(reply.is_void for reply in rollout.replies) for rollout in rollouts),
        "turns/feedback_tokens_mean": fmean(rollout.num_feedback_tokens for rollout in rollouts),
        "turns/cut_share": fmean(rollout.finish is FinishReason.LENGTH for rollout in rollouts),
        "turns/lost_share": fmean(any(reply.is_lost for reply in rollout.replies) for rollout in rollouts),
    }
