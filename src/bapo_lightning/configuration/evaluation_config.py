"""The configuration of an evaluation, validated once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from bapo_lightning.configuration.sections import (
    Composed,
    EnvironmentSection,
    Lengths,
    Model,
    RolloutSection,
    Section,
    environment_problems,
)
from bapo_lightning.configuration.targets import Target
from bapo_lightning.system.values import Count, Size


class EvaluationData(Section):
    """Problems by the name of their set, and how they become prompts."""

    prompt: Target
    validation: dict[str, Target]


class EvaluationConfig(Composed):
    """Everything that defines one evaluation, with all open keys filled."""

    checkpoint: str
    trusted: list[str]
    k: Size
    problems_per_set: Count | None
    data: EvaluationData
    model: Model
    scale: Lengths
    rollout: RolloutSection
    reward: Target
    environment: EnvironmentSection | None
    samples_per_call: Count
    run_folder: str | None

    @property
    def folder(self) -> Path:
        """The folder of the evaluation, once it has one."""
        assert self.run_folder is not None
        return Path(self.run_folder)

    def problems(self) -> Iterator[str]:
        """Requires problems to answer, and a distribution that samples can be drawn from."""
        if not self.data.validation:
            yield (
                "no problems to answer; write DATA=NAME,NAME (sets=NAME,NAME), each a file of "
                "conf/problem_set, e.g. aime24"
            )
        yield from environment_problems(self.environment, self.scale.max_feedback_tokens)
        if self.rollout.temperature < 0:
            yield f"rollout.temperature={self.rollout.temperature:g} must be at least 0 (greedy)"
        if self.rollout.temperature == 0 and self.k != 1:
            yield (
                f"k={self.k} with rollout.temperature=0: all samples of a problem would be the same; write "
                "k=1, or another temperature"
            )
