"""One optimizer update on one minibatch: Algorithm 1, lines 8-20.

    minibatch --micro_batches--> micro-batches, each token with its weight in the loss (`loss_weights`)
        |                        (under guessed bounds, all of what follows in one pass: `speculation.py`)
        score_for_search         r of every token, before the first gradient
        bound_rule.choose        c_low, c_high: fixed, or searched on the contributions (Eq. 8)
        prepare                  columns that the objective makes from the whole update, if any
        |
        score, objective         min(r A, clip(r, c_low, c_high) A) of every token (Eq. 4)
        manual_backward          summed over tokens, micro-batches and ranks
        |
        apply_gradients          gradient clip, AdamW (its rate times `step_scale`), learning-rate schedule
        |
        outputs                  metrics, TokenTable and BoundSearch for the callbacks

`reference.py` has the same steps without Lightning, ranks or choices.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from math import isfinite
from typing import Any, cast

import lightning as L
import torch
from lightning.pytorch.utilities.types import OptimizerLRScheduler
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from bapo_lightning.data.batches.batch import MicroBatch, TrainBatch, blank_batch
from bapo_lightning.modules.algorithm import Algorithm
from bapo_lightning.modules.bound_rules import guesses, searches_each_micro_batch
from bapo_lightning.modules.fsdp import Sharding, by_position, clip_gradients, gradient_sync, reshard
from bapo_lightning.modules.policy.for_objective import policy_for
from bapo_lightning.modules.policy.policy import Policy
from bapo_lightning.modules.schedules import step_scaled
from bapo_lightning.modules.speculation import SearchedPart, speculate
from bapo_lightning.modules.token_tables import (
    columns_read,
    gather_tables,
    prepared_for_update,
    step_scale_of_update,
    token_table,
)
from bapo_lightning.objectives.bounds import BoundSearch
from bapo_lightning.objectives.objective import prepares, token_loss, with_slopes
from bapo_lightning.objectives.token_table import Correction, Proximal, StepScale, TokenTable
from bapo_lightning.objectives.weighting import weigh
from bapo_lightning.system.errors import TrainingError
from bapo_lightning.system.phases import phase
from bapo_lightning.system.precision import is_mixed, outside_of_autocast
from bapo_lightning.system.ranks.collectives import (
    count_over_ranks,
    max_over_ranks,
    num_ranks,
    sum_over_ranks,
)

KEPT = ("num_skipped_updates", "_nonfinite_in_a_row", "last_learning_rate", "last_entropy")  # in checkpoints


class BapoModule(L.LightningModule):
    """The policy and its optimizer: one `training_step` is one update, `global_step` the policy version.

    It does not sample, and it does not depend on a particular algorithm: GRPO, DAPO and BAPO are arguments.
    With several ranks each trains on a share of the minibatch, and every sum is taken over all ranks.
    """

    policy: Policy
    is_mixed = False  # whether the policy's blocks compute in bfloat16, by the trainer's precision

    def __init__(
        self,
        make_policy: Callable[..., Policy],
        algorithm: Algorithm,
        optimizer: Callable[..., Optimizer],
        scheduler: Callable[[Optimizer], LRScheduler],
        micro_batch_tokens: int,
        max_grad_norm: float,
        max_age: int,
        max_nonfinite_in_a_row: int,
        correction: Correction | None = None,
        proximal: Proximal | None = None,
        step_scale: StepScale | None = None,
        sharding: Sharding | None = None,
    ) -> None:
        """
        Args:
            make_policy: builds the policy, once the strategy is set up; with `on_meta=True` without memory,
                for ranks that receive their weights from rank 0; see `policy_for` for other arguments.
            algorithm: bounds, objective and weighting of the update.
            optimizer: parameters -> optimizer.
            scheduler: optimizer -> schedule, which makes one step per update.
            micro_batch_tokens: tokens that pass through the model at once; padding counts unless the policy
                packs sequences.
            max_grad_norm: norm to which longer gradients are scaled down.
            max_age: largest age of a token, in updates; an older one is an error.
            max_nonfinite_in_a_row: updates skipped in a row for non-finite gradients that end the run.
            correction: table -> factors of the weights, from `objectives.corrections`; None leaves them out.
            proximal: table -> log-probs of the policy in the ratio's denominator; None: the batch's.
            step_scale: table of the whole update -> factor of its learning rate; None: 1.
            sharding: way to shard the policy over the ranks; None keeps all of it on each rank.
        """
        super().__init__()
        self.automatic_optimization = False
        self._make_policy, self.bound_rule = make_policy, algorithm.bounds
        self.objective, self.weighting = algorithm.objective, algorithm.weighting
        self._optimizer, self._scheduler = optimizer, scheduler
        self.micro_batch_tokens = micro_batch_tokens
        self.max_grad_norm = max_grad_norm
        self.max_age = max_age
        self.max_nonfinite_in_a_row = max_nonfinite_in_a_row
        self.correction, self.proximal, self.step_scale = correction, proximal, step_scale
        self.sharding = sharding
        self.last_bounds: BoundSearch | None = None  # of the search before
        self.num_skipped_updates = self._nonfinite_in_a_row = 0
        self.last_learning_rate = 0.0
        self.last_step_scale = 1.0
        self.last_entropy: float | Tensor = 0.0  # nats, mean over the last update's tokens, on rank 0

    @property
    def policy_version(self) -> int:
        """Optimizer updates in the current weights."""
        return self.trainer.global_step

    @phase("loading the model")
    def configure_model(self) -> None:
        """Builds the policy, once."""
        if hasattr(self, "policy"):
            return
        mesh = None if self.device_mesh is None else self.device_mesh["data_parallel"]
        self.policy = policy_for(self.objective, self._make_policy, self.sharding, mesh, self.is_mixed)

    def setup(self, stage: str) -> None:
        """Takes over the trainer's precision. Raises ConfigError if it, or a callback's `needs`, is wrong."""
        self.is_mixed = is_mixed(self.trainer.precision)
        columns_read(self.trainer)

    def configure_optimizers(self) -> OptimizerLRScheduler:
        """Returns optimizer and schedule, which `apply_gradients` steps."""
        optimizer = self._optimizer(self.policy.trained_parameters())
        schedule = {"scheduler": self._scheduler(optimizer), "interval": "step"}
        return cast(OptimizerLRScheduler, {"optimizer": optimizer, "lr_scheduler": schedule})

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Adds the counts of skipped updates, the last learning rate and the last bounds."""
        checkpoint["counts"] = {name: getattr(self, name) for name in KEPT}
        checkpoint["counts"]["last_entropy"] = float(self.last_entropy)
        checkpoint["last_bounds"] = self.last_bounds and tuple(self.last_bounds)

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Restores them, and orders the optimizer's state by parameter."""
        for name in KEPT:
            setattr(self, name, checkpoint["counts"].get(name, getattr(self, name)))
        last = checkpoint.get("last_bounds")
        self.last_bounds = last and BoundSearch(*last)
        names = [f"policy.{name}" for name, each in self.policy.named_parameters() if each.requires_grad]
        for state in checkpoint.get("optimizer_states", []):
            by_position(state, names)

    @phase("updating")
    @outside_of_autocast
    def training_step(self, batch: TrainBatch, batch_idx: int) -> dict[str, Any]:
        """Makes one update on one minibatch. Raises StaleDataError: a token is too old; TrainingError: too
        many gradients in a row were not finite.

        Returns for the callbacks: `loss` (of this rank's share), `metrics` (numbers to log), `version` (of
        the policy that was trained), `tokens` (on rank 0 the columns of the minibatch's TokenTable that they
        need; None on other ranks) and `bounds` (one BoundSearch for every part that shares its bounds).
        """
        start = time.perf_counter()
        version = self.policy_version
        self.check_ages(batch, version)
        optimizer: Any = self.optimizers()
        optimizer.zero_grad()
        micro_batches, num_used = self.micro_batches(batch)
        memories = self.memories()
        parts: list[SearchedPart] = []
        for scope in self.bound_rule.scopes(micro_batches):
            is_last = sum(len(part.losses) for part in parts) + len(scope) == len(micro_batches)
            if (guess := self.guess(scope)) is None:
                parts.append(self.in_two_passes(scope, is_last, num_used))
            else:
                parts.append(self.in_one_pass(scope, guess, is_last, num_used, batch))
        tables = [table for part in parts for table in part.tables][:num_used]
        search_metrics = self.note_search(parts)
        self.last_step_scale = step_scale_of_update(self.step_scale, tables)
        grad_norm = self.apply_gradients(optimizer)
        if not isfinite(grad_norm):
            self.remember(memories)
        local_loss = torch.stack([loss for part in parts for loss in part.losses]).sum()
        metrics = batch.metrics | {
            **search_metrics,
            "train/loss": sum_over_ranks(local_loss),
            "train/grad_norm": grad_norm,
            "train/skipped_updates": self.num_skipped_updates,
            "progress/version": self.policy_version,
            "time/update_seconds": time.perf_counter() - start,
        }
        outputs = {"loss": local_loss, "metrics": metrics, "version": version}
        return outputs | {"tokens": self.gathered(tables), "bounds": [part.bounds for part in parts]}

    def memories(self) -> dict[str, Tensor]:
        """Returns a copy of the buffers of bounds, objective and all other parts except the policy."""
        return {
            name: buffer.clone() for name, buffer in self.named_buffers() if not name.startswith("policy.")
        }

    def remember(self, memories: Mapping[str, Tensor]) -> None:
        """Restores the `memories` from before an update, because the update was skipped."""
        for name, values in memories.items():
            self.get_buffer(name).copy_(values)

    def in_two_passes(self, scope: Sequence[MicroBatch], is_last: bool, num_used: int) -> SearchedPart:
        """Bounds of a part of the update, then its gradients. Blank micro-batches follow `num_used`."""
        start = time.perf_counter()
        scored = self.score_for_search(scope)  # r of every token
        bounds = self.bound_rule.choose([table.detach() for table in scored])  # c_low, c_high
        seconds = time.perf_counter() - start
        prepared = prepared_for_update(self.objective, scored[:num_used], bounds, len(scope))
        losses: list[Tensor] = []
        tables: list[TokenTable] = []
        for micro_batch, columns in zip(scope, prepared, strict=True):
            table = scored[0] if len(scored) == 1 else self.score(micro_batch)
            loss, table = token_loss(table, bounds, columns, self.objective)  # Eq. 4
            losses.append(loss.detach())
            self.add_gradient(loss, is_last and len(losses) == len(scope))
            tables.append(with_slopes(table.detach(), self.objective))
        return SearchedPart(bounds, losses, tables, None, seconds)

    def in_one_pass(
        self, scope: Sequence[MicroBatch], guess: BoundSearch, is_last: bool, num_used: int, batch: TrainBatch
    ) -> SearchedPart:
        """Gradients of a part of the update under guessed bounds, and the true ones; see `speculate`."""
        return speculate(
            scope,
            num_used,
            guess,
            self.score,
            self.bound_rule.choose,
            self.objective,
            lambda loss, is_last_pass: self.add_gradient(loss, is_last and is_last_pass),
            lambda samples: self.micro_batches(batch, samples),
        )

    def add_gradient(self, loss: Tensor, is_last: bool) -> None:
        """Adds the gradient of a loss; the last loss of an update sums gradients over ranks."""
        with gradient_sync(self, when=is_last):
            # Ranks average their gradients; the weights already give a mean over all ranks.
            self.manual_backward(loss * num_ranks())

    @torch.no_grad()
    def mean_entropy(self, batch: TrainBatch) -> Tensor:
        """Returns the mean entropy [nats] of the minibatch's tokens, 0-dim. Every rank must call it."""
        micro_batches, num_used = self.micro_batches(batch)
        parts = [self.score(micro_batch).entropy for micro_batch in micro_batches][:num_used]
        reshard(self.policy)
        if num_ranks() == 1:
            return torch.cat(parts).mean()
        sums = [part.double().sum() for part in parts] or [torch.zeros((), dtype=torch.float64)]
        (num_tokens,) = count_over_ranks(batch.num_tokens, device=torch.device("cpu"))
        return sum_over_ranks(torch.stack(sums).sum()) / num_tokens

    def gathered(self, tables: Sequence[TokenTable]) -> TokenTable | None:
        """Returns on rank 0 the table of all ranks' minibatch, noting its mean entropy; None on others."""
        table = gather_tables(tables, columns_read(self.trainer) | {"entropy"})
        if table is not None:
            self.last_entropy = table.entropy.mean()
        return table

    def check_ages(self, batch: TrainBatch, version: int) -> None:
        """Raises StaleDataError if a token of the minibatch is too old; rank 0 checks for all ranks."""
        minibatch = batch.global_batch or batch
        if minibatch.groups:
            minibatch.check_ages(version, self.max_age)

    def micro_batches(
        self, batch: TrainBatch, samples: Sequence[int] | None = None
    ) -> tuple[list[MicroBatch], int]:
        """This rank's micro-batches, of some `samples` alone if they are given by their numbers in the
        minibatch of all ranks, and the number of real ones.

        Blank micro-batches, which add nothing, follow until every rank has as many: all ranks together gather
        sharded weights and search bounds.
        """
        mixed, weights = searches_each_micro_batch(self.bound_rule), self.loss_weights(batch)
        parts = batch.split(self.micro_batch_tokens, weights, self.policy.layout, mixed, samples)
        missing = max_over_ranks(len(parts)) - len(parts)
        if not missing:
            return parts, len(parts)
        blank = blank_batch(batch)
        weights = torch.zeros_like(blank.behaviour_logp)
        return parts + blank.split(self.micro_batch_tokens, weights, self.policy.layout) * missing, len(parts)

    def loss_weights(self, batch: TrainBatch) -> Tensor:
        """Returns weights[B, T] whose weighted sum over all ranks' minibatch is the weighting's mean."""
        counts = batch.num_tokens, batch.num_samples, batch.num_steps
        totals = count_over_ranks(*counts, device=torch.device("cpu"))
        weights = weigh(self.weighting, batch.response_mask, *totals)
        return weights * batch.factor.unsqueeze(1)

    def score(self, micro_batch: MicroBatch) -> TokenTable:
        """Returns the token table of one micro-batch under the current weights, corrected."""
        table = token_table(self.policy, micro_batch, self.policy_version)
        if self.proximal is not None:
            sampled = table.is_sampled  # only these tokens have a policy for the ratio's denominator
            table = table.relative_to(self.proximal(table.detach()).where(sampled, table.proximal_logp))
        if self.correction is None:
            return table
        return table.corrected(self.correction(table.detach()).where(table.is_sampled, 1.0))

    def guess(self, scope: Sequence[MicroBatch]) -> BoundSearch | None:
        """Bounds that the search of a part of the update may find; None: they are not guessed."""
        can_guess = guesses(self.bound_rule) and not prepares(self.objective) and len(scope) > 1
        if self.last_bounds is None or not can_guess:
            return None
        return BoundSearch(*(each.to(scope[0].weight.device) for each in self.last_bounds))

    def note_search(self, parts: Sequence[SearchedPart]) -> dict[str, float]:
        """Remembers the last search, and returns what is logged of searches, if there were any."""
        if not self.bound_rule.searches:
            return {}
        self.last_bounds = parts[-1].bounds
        metrics = {"time/search_seconds": sum(part.search_seconds for part in parts)}
        shares = [part.redone for part in parts if part.redone is not None]
        if shares:
            redone = sum(shares)
            metrics |= {"search/guessed": float(not redone), "search/redone_tokens": redone}
            metrics["time/redo_seconds"] = sum(part.redo_seconds for part in parts)
        return metrics

    def score_for_search(self, scope: Sequence[MicroBatch]) -> list[TokenTable]:
        """Returns token tables of the whole update before its first gradient; none if they are not needed.

        The table of a lone micro-batch carries its graph, so that the same pass serves the update.
        """
        if not self.bound_rule.searches and not prepares(self.objective):
            return []
        with torch.set_grad_enabled(len(scope) == 1):
            return [self.score(micro_batch) for micro_batch in scope]

    def apply_gradients(self, optimizer: Any) -> float:
        """Clips, then steps optimizer and schedule; returns the norm before clipping. An update with a
        non-finite gradient is skipped, and the policy version stays. Raises TrainingError after
        `max_nonfinite_in_a_row` skipped updates in a row.
        """
        grad_norm = clip_gradients(self.policy.parameters(), self.max_grad_norm)
        if isfinite(grad_norm):
            self._nonfinite_in_a_row = 0
            self.last_learning_rate = step_scaled(optimizer, self.last_step_scale)
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
