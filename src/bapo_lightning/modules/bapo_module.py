"""The optimizer update: Algorithm 1, lines 8-20."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Sequence
from typing import Any, cast

import lightning as L
import torch
from lightning.pytorch.utilities.types import OptimizerLRScheduler
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from bapo_lightning.data.batches.batch import MicroBatch, TrainBatch
from bapo_lightning.data.batches.shares import blank_batch
from bapo_lightning.errors import TrainingError
from bapo_lightning.modules.bound_rules import AdaptiveBounds, FixedBounds
from bapo_lightning.modules.fsdp.broadcast_policy import replicated_policy, sharded_policy
from bapo_lightning.modules.fsdp.sharding import Sharding, clip_gradients, gradient_sync, reshard
from bapo_lightning.modules.fsdp.strategy import by_position
from bapo_lightning.modules.policy.policy import Policy
from bapo_lightning.modules.token_table import TokenTable, gather_tables
from bapo_lightning.objectives.bounds import BoundSearch
from bapo_lightning.ranks.collectives import count_over_ranks, max_over_ranks, num_ranks, sum_over_ranks

Objective = Callable[
    [Tensor, Tensor, Tensor, Tensor], Tensor
]  # ratio[N], advantage[N], low, high -> objective[N] to maximise
COUNTS = ("num_skipped_updates", "_nonfinite_in_a_row", "last_learning_rate")  # in checkpoints
Correction = Callable[[Tensor], Tensor]  # log pi_proximal - log pi_behaviour in nats -> weight, same shape


class BapoModule(L.LightningModule):
    """Wraps the policy; one `training_step` is one optimizer update, so the policy version is the trainer's
    `global_step`.

    What an update found is returned to the callbacks: `metrics` (numbers to log), `version` (of the policy
    that was trained), `tokens` (TokenTable of the minibatch) and `bounds` (one BoundSearch per scope). Of
    several ranks each trains on a share of the minibatch, and all sums are taken over all of them; `tokens`
    is None but on the leader, which has those of all. It does not sample, and it knows no algorithm by name:
    GRPO, DAPO and BAPO are arguments.
    """

    policy: Policy

    def __init__(
        self,
        make_policy: Callable[..., Policy],
        bound_rule: FixedBounds | AdaptiveBounds,
        objective: Objective,
        weighting: Callable[..., Tensor],
        optimizer: Callable[..., Optimizer],
        scheduler: Callable[[Optimizer], LRScheduler],
        micro_batch_tokens: int,
        max_grad_norm: float,
        max_age: int,
        max_nonfinite_in_a_row: int,
        correction: Correction | None = None,
        sharding: Sharding | None = None,
    ) -> None:
        """
        Args:
            make_policy: builds the policy, once the strategy is set up; with `on_meta=True` without memory,
                for ranks that are given it.
            bound_rule: chooses the clipping bounds of each update.
            objective: per-token objective, from `objectives.surrogate`.
            weighting: mask -> weights, from `objectives.weighting`; called with those of `total` and
                `num_sequences` it takes.
            optimizer: parameters -> optimizer.
            scheduler: optimizer -> schedule, one step an update.
            micro_batch_tokens: tokens that pass through the model at once; padding counts unless the policy
                packs sequences.
            max_grad_norm: gradients are scaled down to this norm.
            max_age: oldest token, in updates, that may be trained on; an older one is an error.
            max_nonfinite_in_a_row: so many updates skipped for a non-finite gradient, one after the other,
                end the run.
            correction: weights of decoupled PPO, from `objectives.correction`; None: every token counts as
                its engine sampled it.
            sharding: of the policy over the ranks; None: each has all of it.
        """
        super().__init__()
        self.automatic_optimization = False
        self._make_policy, self.bound_rule = make_policy, bound_rule
        self.objective = objective
        self.weighting = weighting
        self._optimizer = optimizer
        self._scheduler = scheduler
        self.micro_batch_tokens = micro_batch_tokens
        self.max_grad_norm = max_grad_norm
        self.max_age = max_age
        self.max_nonfinite_in_a_row = max_nonfinite_in_a_row
        self.correction = correction
        self.sharding = sharding
        self.num_skipped_updates = self._nonfinite_in_a_row = 0
        self.last_learning_rate = 0.0

    @property
    def policy_version(self) -> int:
        """Optimizer updates in the current weights."""
        return self.trainer.global_step

    def configure_model(self) -> None:
        """Build the policy, once."""
        if not hasattr(self, "policy"):
            mesh = (
                self.device_mesh["data_parallel"]
                if self.sharding is not None and self.device_mesh is not None
                else None
            )
            if self.sharding is not None and mesh is not None:
                self.policy = sharded_policy(self._make_policy, self.sharding, mesh)
            else:
                self.policy = replicated_policy(self._make_policy)

    def configure_optimizers(self) -> OptimizerLRScheduler:
        """Both as they were given; `apply_gradients` steps the schedule, once an update."""
        optimizer = self._optimizer(self.policy.trained_parameters())
        schedule = {"scheduler": self._scheduler(optimizer), "interval": "step"}
        return cast(OptimizerLRScheduler, {"optimizer": optimizer, "lr_scheduler": schedule})

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Add what counts beside the weights."""
        checkpoint["counts"] = {name: getattr(self, name) for name in COUNTS}

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Go on counting."""
        for name in COUNTS:
            setattr(self, name, checkpoint["counts"][name])
        names = [
            f"policy.{name}" for name, parameter in self.policy.named_parameters() if parameter.requires_grad
        ]
        for state in checkpoint.get("optimizer_states", []):
            by_position(state, names)

    def training_step(self, batch: TrainBatch, batch_idx: int) -> dict[str, Any]:
        """One update of Algorithm 1 on one minibatch of replayed samples."""
        start = time.perf_counter()
        version = self.policy_version
        self.check_ages(batch, version)
        optimizer: Any = self.optimizers()
        optimizer.zero_grad()
        losses: list[Tensor] = []
        tables: list[TokenTable] = []
        searches: list[BoundSearch] = []
        micro_batches, num_own = self.micro_batches(batch)
        for scope in self.bound_rule.scopes(micro_batches):
            scored = self.score_for_search(scope)  # r_t of every token
            bounds = self.bound_rule.choose(scored)  # Algorithm 1: search c_low, c_high
            for micro_batch in scope:
                table = scored[0] if len(scored) == 1 else self.score(micro_batch)
                objective = self.objective(table.ratio, table.advantage, bounds.low, bounds.high)  # Eq. 4
                loss = -(table.weight * objective).sum()
                with gradient_sync(self, when=len(losses) == len(micro_batches) - 1):
                    self.manual_backward(
                        loss * num_ranks()
                    )  # ranks average their gradients; the weights already make a global mean
                losses.append(loss.detach())
                tables.append(table.detach())
            searches.append(bounds)
        grad_norm = self.apply_gradients(optimizer)
        metrics = batch.metrics | {
            "train/loss": float(sum_over_ranks(torch.stack(losses).sum())),
            "train/grad_norm": grad_norm,
            "train/skipped_updates": self.num_skipped_updates,
            "progress/version": self.policy_version,
            "time/update_seconds": time.perf_counter() - start,
        }
        outputs = {"loss": torch.stack(losses).sum(), "metrics": metrics, "version": version}
        return outputs | {"tokens": gather_tables(tables[:num_own]), "bounds": searches}

    def check_ages(self, batch: TrainBatch, version: int) -> None:
        """Raises StaleDataError for a token of the minibatch that is too old, on the leader of several ranks,
        which knows all of them.
        """
        whole = batch.global_batch or batch
        if whole.groups:
            whole.check_ages(version, self.max_age)

    def micro_batches(self, batch: TrainBatch) -> tuple[list[MicroBatch], int]:
        """Micro-batches of this rank's share, and how many there are; then come blank ones, which add
        nothing, until it has as many as any
        rank: sharded weights are gathered, and bounds searched, by all ranks together.
        """
        own = batch.split(self.micro_batch_tokens, self.loss_weights(batch), self.policy.layout)
        missing = max_over_ranks(len(own)) - len(own)
        blank = blank_batch(batch.input_ids.device)
        blanks = (
            blank.split(self.micro_batch_tokens, torch.zeros_like(blank.behaviour_logp), self.policy.layout)
            if missing
            else []
        )
        return own + blanks * missing, len(own)

    @torch.no_grad()
    def mean_entropy(self, batch: TrainBatch) -> Tensor:
        """Mean entropy in nats of the minibatch's tokens under the current weights. Every rank must call it,
        with its share.
        """
        micro_batches, num_own = self.micro_batches(batch)
        parts = [self.score(micro_batch).entropy for micro_batch in micro_batches][:num_own]
        reshard(self.policy)
        if num_ranks() == 1:
            return torch.cat(parts).mean()
        total = sum_over_ranks(
            torch.stack(
                [part.double().sum() for part in parts] or [torch.zeros((), dtype=torch.float64)]
            ).sum()
        )
        return total / count_over_ranks(batch.num_tokens, device=torch.device("cpu"))[0]

    def global_weights(self, batch: TrainBatch) -> Tensor:
        """Weights[B, T] whose weighted sum over the minibatch of all ranks is the mean that the weighting
        names.
        """
        num_tokens, num_samples = count_over_ranks(
            batch.num_tokens, batch.num_samples, device=torch.device("cpu")
        )
        counts = {"total": num_tokens, "num_sequences": num_samples}
        accepted = inspect.signature(self.weighting).parameters
        return self.weighting(
            batch.response_mask, **{name: count for name, count in counts.items() if name in accepted}
        )

    def loss_weights(self, batch: TrainBatch) -> Tensor:
        """Global weights[B, T] times the correction, which is not normalised: a masked token is left out, and
        no other counts more.
        """
        weights = self.global_weights(batch)
        return (
            weights
            if self.correction is None
            else weights * self.correction(batch.proximal_logp - batch.behaviour_logp)
        )

    def score(self, micro_batch: MicroBatch) -> TokenTable:
        """Token table of one micro-batch under the current weights."""
        return TokenTable.of(micro_batch, *self.policy(micro_batch))

    def score_for_search(self, scope: Sequence[MicroBatch]) -> list[TokenTable]:
        """What the bound rule must see before the first gradient: nothing if it does not search; a lone
        micro-batch with its graph, so that the same pass serves the update; several without.
        """
        if not self.bound_rule.searches:
            return []
        with torch.set_grad_enabled(len(scope) == 1):
            return [self.score(micro_batch) for micro_batch in scope]

    def apply_gradients(self, optimizer: Any) -> float:
        """Clip and step; returns the norm before clipping. A non-finite gradient is skipped, and the policy
        version stays.

        Raises:
            TrainingError: after `max_nonfinite_in_a_row` skipped updates in a row.
        """
        grad_norm = clip_gradients(self.policy.parameters(), self.max_grad_norm)
        if torch.isfinite(torch.tensor(grad_norm)):
            self._nonfinite_in_a_row = 0
            self.last_learning_rate = optimizer.param_groups[0]["lr"]
            optimizer.step()
            schedule = self.lr_schedulers()
            assert isinstance(schedule, LRScheduler)
            schedule.step()
            return grad_norm
        self.num_skipped_updates += 1
        self._nonfinite_in_a_row += 1
        if self._nonfinite_in_a_row >= self.max_nonfinite_in_a_row:
            raise TrainingError(
                f"the gradient was not finite in {self._nonfinite_in_a_row} updates in a row (policy version "
                f"{self.policy_version}); lower optimizer.lr, or look at rollouts.jsonl for degenerate "
                "samples. The last checkpoint is kept"
            )
        return grad_norm
