"""The contract between a conversation and the environment that answers the policy in it.

    start(problem) -> state
    turn (text, state) -> respond -> Reply (feedback, state) -> next turn ... -> Reply(is_done, score)

An environment holds no state of any single conversation: what it must know at the next turn is the state of
its last reply, which checkpoints keep.
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
    number: int  # counted from 0
    is_last: bool  # a limit allows no further turn: feedback would not be read
    state: Any  # of the last reply, or of `start`


@runtime_checkable
class Environment(Protocol):
    """Answers turns, from several threads at once.

    A class may have one more attribute, `is_pure: bool`, true if a reply follows from its turn alone and
    nothing else happens. After a kill such an environment is called again; the replies of any other are kept
    in the run folder, and it never gets the same turn twice.

    A method `metrics(replies: Sequence[Reply]) -> Mapping[str, float]`, if it has one, returns metrics of an
    update, from the replies to all its conversations, one conversation after another.
    """

    def start(self, problem: Problem) -> Any:
        """Returns the state before the first turn, as a JSON value."""
        ...

    def respond(self, turn: Turn) -> Reply:
        """Returns the answer to a turn. The policy's mistakes become feedback; an exception ends the run."""
        ...
