"""The environment of a run: typed, and its rules."""

from __future__ import annotations

from collections.abc import Iterator

from bapo_lightning.configuration.sections import Section
from bapo_lightning.configuration.targets import Target
from bapo_lightning.data.rollouts.feedback import ChatFeedback
from bapo_lightning.values import Count, CountOrZero, Name


class EnvironmentSection(Section):
    """Who answers the policy between its turns."""

    name: Name
    answers: Target
    feedback: Target
    max_turns: Count
    max_reply_tokens: Count
    stop: tuple[str, ...]
    workers: CountOrZero

    def problems(self) -> Iterator[str]:
        """Turns that end as the format of messages asks."""
        if self.stop and self.feedback.is_a(ChatFeedback):
            yield (
                f"stop={list(self.stop)} with a chat format, whose messages end with the end token; write "
                "environment.stop=[], or environment/feedback=plain"
            )


def environment_problems(environment: EnvironmentSection | None, max_feedback_tokens: int) -> Iterator[str]:
    """Room for feedback where there is some, and nowhere else."""
    if environment is None:
        if max_feedback_tokens:
            yield (
                f"scale.max_feedback_tokens={max_feedback_tokens} without an environment has no effect; "
                "write environment=NAME, or leave it out"
            )
        return
    yield from (f"environment.{text}" for text in environment.problems())
    if not max_feedback_tokens and environment.max_turns > 1:
        needed = environment.max_reply_tokens * (environment.max_turns - 1)
        yield (
            f"environment={environment.name} with scale.max_feedback_tokens=0: no reply would fit; write "
            f"scale.max_feedback_tokens={needed}, which is room for every reply"
        )
