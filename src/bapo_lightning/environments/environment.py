"""The contract between a conversation and whoever answers the policy in it.

    start(problem) -> state
    turn (text, state) -> respond -> Reply (feedback, state) -> next turn ... -> Reply(is_done, score)

An environment holds nothing of any one conversation: what it must know at the next turn is the state of its
last reply, which checkpoints keep.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from bapo_lightning.types import Problem, Reply


@dataclass(frozen=True, slots=True)
class Turn:
    """One turn of the policy."""

    problem: Problem
    text: str  # decoded, without end tokens
    number: int  # from 0 on
    is_last: bool  # a limit allows no further turn: feedback would not be read
    state: Any  # of the last reply, or of `start`


@runtime_checkable
class Environment(Protocol):
    """Answers turns, from several threads at once.

    A class may have one more attribute, `is_pure: bool`, true if a reply follows from its turn alone and
    nothing else happens. After a kill such an environment is asked again; the replies of any other are kept
    in the run folder, and it never gets the same turn twice.
    """

    def start(self, problem: Problem) -> Any:
        """Returns the state before the first turn, as JSON can hold it."""
        ...

    def respond(self, turn: Turn) -> Reply:
        """Returns the answer to a turn. Faults of the policy are feedback; an exception ends the run."""
        ...
