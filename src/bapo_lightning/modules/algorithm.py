"""An algorithm as one object, for the update, exact worlds and the closed forms of the tests."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from torch import Tensor

from bapo_lightning.data.rollouts.rules import Rules
from bapo_lightning.data.rollouts.stages import BatchStage
from bapo_lightning.modules.bound_rules import BoundRule
from bapo_lightning.objectives.objective import Objective


@dataclass(frozen=True)
class Algorithm:
    """The parts of an algorithm, by the keys of `conf/algorithm`."""

    advantages: Callable[[Tensor], Tensor]  # rewards[P, G] -> advantages[P, G]
    objective: Objective  # table -> objective of each token
    bounds: BoundRule  # chooses the clipping bounds of each update
    weighting: Callable[..., Tensor]  # mask[B, T], counts -> weights[B, T], from `objectives.weighting`
    rules: Rules = field(default_factory=Rules)  # for single groups, on their way to training
    stages: Mapping[str, BatchStage] = field(default_factory=dict)  # for batches, likewise
