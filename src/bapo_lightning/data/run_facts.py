"""What a part of an algorithm may ask of its run before anything is built."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bapo_lightning.data.rollouts.regime import Regime


@dataclass(frozen=True)
class RunFacts:
    """A run, as far as the parts of its algorithm depend on it. A class among them may have a static method
    `run_problems(options, run)`, which yields what is wrong between its options and a run, and
    `machine_problems(options, run)`, which also looks at this machine's files; see `configuration.targets`.
    """

    experiment: str  # its name
    model: str  # path of the model that is trained
    regime: Regime
    group_size: int  # G, responses per problem
    prompts_per_batch: int  # P, problems per rollout batch
    max_prompt_tokens: int
    max_new_tokens: int
    environment: str | None  # name of the one that answers the policy, if any does
    parts: Mapping[str, Any]  # classes and functions of the algorithm, by key below `algorithm`
