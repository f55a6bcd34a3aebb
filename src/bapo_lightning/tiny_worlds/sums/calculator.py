"""The calculator of the sums, in the few characters that the model knows."""

from __future__ import annotations

import re

from bapo_lightning.environments.environment import Turn
from bapo_lightning.types import Problem, Reply

CALL = "["
END_OF_CALL = "]"
END_OF_RESULT = "."
ERROR = "!"

_CALL = re.compile(r"\[([0-9]{3})\+([0-9]{3})\]")


def answer_to(call: str) -> str:
    """Returns the sum that a turn requests, as `633.`; `!` for anything but the form `[347+286]`."""
    match = _CALL.fullmatch(call)
    return ERROR if match is None else f"{int(match.group(1)) + int(match.group(2))}{END_OF_RESULT}"


class SumCalculator:
    """Answers turns that end with `]`; any other turn is the policy's answer, and ends the conversation."""

    is_pure = True

    def start(self, problem: Problem) -> None:
        """Has no state."""

    def respond(self, turn: Turn) -> Reply:
        """Returns the sum, or `!`."""
        if not turn.text.endswith(END_OF_CALL):
            return Reply(is_done=True, is_void=not turn.text)
        feedback = answer_to(turn.text)
        return Reply(feedback, calls=1, errors=int(feedback == ERROR))
