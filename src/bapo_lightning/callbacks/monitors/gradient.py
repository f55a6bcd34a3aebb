"""Direction of an update's gradient, compared with the previous update's."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from lightning import LightningModule, Trainer
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from bapo_lightning.callbacks.monitors.monitor import Metrics, Monitor, MonitoredUpdate
from bapo_lightning.objectives.gradients import cosine, inner_product
from bapo_lightning.system.ranks.collectives import sum_over_ranks


@dataclass(eq=False)
class GradientMonitor(Monitor):
    """Emits `gradient/cosine` of successive gradients, each of a whole update: all of its micro-batches and
    ranks. An update that was skipped because its gradient is not finite is ignored.

    It keeps a copy of the last gradient (of this rank's shards if weights are sharded). Checkpoints do not
    hold it: the first update of a run, and the first one after a resume, have no cosine.
    """

    needs = frozenset[str]()
    cosine: bool  # False: nothing is kept, and nothing emitted
    _before: dict[int, Tensor] = field(init=False, default_factory=dict)  # gradients by the weight's number
    _square: Tensor | None = field(init=False, default=None)  # of their norm; None before the first update
    _cosine: Tensor | None = field(init=False, default=None)  # of this update, not yet emitted

    @torch.no_grad()
    def on_before_optimizer_step(
        self, trainer: Trainer, pl_module: LightningModule, optimizer: Optimizer
    ) -> None:
        """Compares the gradient, which is complete now, with the previous one and replaces it."""
        if not self.cosine:
            return
        weights = [weight for group in optimizer.param_groups for weight in group["params"]]
        gradients = {number: weight.grad for number, weight in enumerate(weights) if weight.grad is not None}
        local = {
            number: gradient.to_local() if isinstance(gradient, DTensor) else gradient
            for number, gradient in gradients.items()
        }
        for number in local.keys() - self._before.keys():
            self._before[number] = torch.zeros_like(local[number])
        product = inner_product((gradient, self._before[number]) for number, gradient in local.items())
        sums = torch.stack([product, inner_product((gradient, gradient) for gradient in local.values())])
        if any(isinstance(gradient, DTensor) for gradient in gradients.values()):
            sums = sum_over_ranks(sums)
        self._cosine = None if self._square is None else cosine(sums[0], sums[1], self._square)
        self._square = sums[1]
        for number, before in self._before.items():  # overwritten, so that there are never two copies
            before.copy_(local[number]) if number in local else before.zero_()

    def measure(self, update: MonitoredUpdate) -> Metrics:
        """Cosine of this update's gradient and the previous one."""
        value, self._cosine = self._cosine, None
        return {} if value is None else {"gradient/cosine": value}
