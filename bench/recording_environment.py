"""An environment that remembers in a file what it was asked: what a tool changes, it changes once."""

from __future__ import annotations

import json
import os
import random
import time
from dataclasses import dataclass

from bapo_lightning.environments.environment import Turn
from bapo_lightning.types import Problem, Reply

CALLS_FILE = "CALLS_FILE"


@dataclass(frozen=True)
class Recording:
    """Answers a turn that ends with `;` by its number, and appends a line to the file that the environment
    variable `CALLS_FILE` names. Takes up to `seconds` for it, in every run others.
    """

    seconds: float = 0.0

    def start(self, problem: Problem) -> list[str]:
        """Returns the texts of no turn."""
        return []

    def respond(self, turn: Turn) -> Reply:
        """Returns the number of the turn, and the texts of all turns as state."""
        time.sleep(random.SystemRandom().uniform(0, self.seconds))
        texts = [*turn.state, turn.text]
        reply = Reply(str(turn.number), is_done=not turn.text.endswith(";"), state=texts, calls=1)
        line = json.dumps([turn.problem.id, *texts]) + "\n"
        file = os.open(os.environ[CALLS_FILE], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(file, line.encode())
        os.close(file)
        return reply
