"""Facts about a run that parts of its algorithm may read before anything is built."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bapo_lightning.data.rollouts.regime import Regime


@dataclass(frozen=True)
class RunFacts:
    """A run, as far as the parts of its algorithm depend on it. The class of a part may have static methods
    `run_problems(options, run)`, which yields conflicts between its options and a run, and
    `machine_problems(options, run)`, which also reads this machine's files; see `configuration.targets`.
    """

    experiment: str  # its name
    model: str  # path of the model that is trained
    regime: Regime
    group_size: int  # G, responses per problem
    prompts_per_batch: int  # P, problems per rollout batch
    max_prompt_tokens: int
    max_new_tokens: int
    environment: str | None  # name of the environment that answers the policy, if any
    parts: Mapping[str, Any]  # classes and functions of the algorithm, by key below `algorithm`
