"""A bonus for responses that keep to a format, on top of another reward.

Formats are found by plain string searches, which no response can make slow.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Literal

from bapo_lightning.rewards.extract import final_answer
from bapo_lightning.rewards.scores import Reward
from bapo_lightning.system.errors import ConfigError
from bapo_lightning.system.values import SignedFactor
from bapo_lightning.types import Closes, Completion, FinishReason, Problem, Score

Format = Literal["marked", "think", "think_answer"]


class FormatReward:
    """Callable `(problems, completions) -> scores`: another reward's scores with a bonus for the format.

    The status stays the verdict on the answer. A response that was cut keeps no format. A <think> that
    the prompt opened counts as part of the response.

    Args:
        reward: judges the answers.
        format: "marked": there is a marked final answer; "think": `<think>...</think>` once, at the
            beginning, not empty, and an answer after it; "think_answer": `<think>...</think>
            <answer>...</answer>` and nothing else.
        bonus: if positive, added to a score's value if the format is kept; if negative, if it is not.

    Raises:
        ConfigError: `format` has none of these values.
    """

    def __init__(self, reward: Reward, format: Format, bonus: SignedFactor) -> None:
        if format not in _FORMATS:
            values = ", ".join(_FORMATS)
            raise ConfigError([f"reward.format={format} is none of its values; write {values}"])
        self.reward, self.bonus, self._is_kept = reward, bonus, _FORMATS[format]

    def __call__(self, problems: list[Problem], completions: list[Completion]) -> list[Score]:
        """Scores each completion against the problem at the same index."""
        scores = self.reward(problems, completions)
        pairs = zip(scores, completions, strict=True)
        return [self._shaped(score, completion) for score, completion in pairs]

    def close(self) -> None:
        """Closes the inner reward, if it can be closed."""
        if isinstance(self.reward, Closes):
            self.reward.close()

    def _shaped(self, score: Score, completion: Completion) -> Score:
        text = f"<think>{completion.text}" if completion.is_thought else completion.text
        kept = completion.finish is FinishReason.STOP and self._is_kept(text)
        added = self.bonus if kept == (self.bonus > 0) else 0.0
        return dataclasses.replace(score, value=score.value + added)


def is_marked(text: str) -> bool:
    """Whether `text` marks a final answer."""
    return final_answer(text) is not None


def is_think(text: str) -> bool:
    """Whether `text` is `<think>...</think>`, once, with something inside and something after it."""
    opened, closed, rest = text.strip().partition("</think>")
    thought = opened[len("<think>") :]
    is_once = opened.startswith("<think>") and "think>" not in thought + rest
    return is_once and bool(closed and thought.strip() and rest.strip())


def is_think_answer(text: str) -> bool:
    """Whether `text` is `<think>...</think> <answer>...</answer>` and nothing else."""
    rest = text.partition("</think>")[2].strip()
    inner = rest[len("<answer>") : -len("</answer>")]
    is_tagged = rest.startswith("<answer>") and rest.endswith("</answer>")
    return is_think(text) and is_tagged and bool(inner.strip()) and "answer>" not in inner


_FORMATS: dict[Format, Callable[[str], bool]] = {
    "marked": is_marked, "think": is_think, "think_answer": is_think_answer,
}  # fmt: skip
