"""The environment that plays the worlds of an OpenEnv server with the policy.

    problem (options of a reset) -> session -> reset -> turn -> action -> step -> what the world shows -> ...

A session is a connection, and no checkpoint can hold it. The state of a conversation is therefore its
actions with a digest of what each of them showed: a session that is gone is made again by a reset and the
same actions, and goes on only if everything comes out as before.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal
from uuid import uuid4

from bapo_lightning.environments.environment import Turn
from bapo_lightning.environments.openenv.actions import ActionFormat
from bapo_lightning.environments.openenv.observations import digest, shown
from bapo_lightning.environments.openenv.server import Server
from bapo_lightning.environments.openenv.session import (
    AT_CAPACITY,
    ENDING,
    Refusal,
    Seen,
    Session,
    SessionLost,
    TooLate,
)
from bapo_lightning.errors import DataError, EnvironmentFault
from bapo_lightning.types import Problem, Reply
from bapo_lightning.values import Seconds, Size

ATTEMPTS = 3  # to take an action whose session is lost
NO_ACTION = "There is no action in this turn. Please write one."
_LOOK_SECONDS = 0.05


class _Over(Exception):
    """The conversation cannot go on."""


@dataclass(slots=True)
class _Place:
    """Where a conversation is in its world."""

    session: str  # name of a session
    steps: list[list[Any]]  # actions, each with the digest of what it showed
    score: float | None  # of the steps so far
    opening: str  # digest of what the reset shows
    options: Mapping[str, Any]  # of the reset


class OpenEnv:
    """Environment that gives the actions of a turn to a world, and replies with what it shows.

    The conversation ends with the episode. Its score is made of the world's rewards, and conversations that a
    limit ended have one too; without any reward there is none.

    Args:
        server: that has the worlds.
        action: how a turn becomes actions (`actions.py`).
        show: template of the reply, such as "{message}"; None: all that the world shows (`observations.py`).
        score: "sum" of the rewards of all steps, or the reward of the "last" one.
        seconds: in which a reset or a step must be answered; the conversation of another one is cut.
        sessions: that stay open between turns; of more, those that were used longest ago are closed.
        after_loss: of a session, "replay" makes it again and takes its actions once more, and "cut" ends the
            conversation: for worlds whose actions leave something behind.
    """

    is_pure = False

    def __init__(
        self,
        server: Server,
        action: ActionFormat,
        show: str | None = None,
        score: Literal["sum", "last"] = "sum",
        seconds: Seconds = 60.0,
        sessions: Size = 1024,
        after_loss: Literal["replay", "cut"] = "replay",
    ) -> None:
        self._server, self._action, self._show, self._score = server, action, show, score
        self._seconds, self._most, self._after_loss = seconds, sessions, after_loss
        # Sessions that nobody uses: name -> session, its number of steps, and since when.
        self._idle: OrderedDict[str, tuple[Session, int, float]] = OrderedDict()
        self._lock = threading.Lock()

    def start(self, problem: Problem) -> None:
        """Returns no state yet: the first turn opens a session."""
        if not {"reset", "opening"} <= set(problem.metadata):
            raise DataError(
                f"problem {problem.id} is no world of OpenEnv; write environment=none, or data whose "
                "_target_ is bapo_lightning.environments.openenv.problems.openenv_problems"
            )

    def respond(self, turn: Turn) -> Reply:
        """Returns what the world shows after the actions of a turn; after those of the last turn too, as they
        may bring a reward.
        """
        place = _place(turn)
        try:
            actions = self._action.actions(turn.text)
        except ValueError as error:
            return Reply(f"Error: {error}.", score=place.score, state=turn.state, calls=1, errors=1)
        if not actions:
            is_done = self._action.may_answer
            self._end_if(is_done or turn.is_last, place)
            text, is_void = "" if is_done else NO_ACTION, not is_done or not turn.text.strip()
            return Reply(text, is_done, place.score, turn.state, is_void=is_void)
        texts, errors, is_done = list[str](), 0, False
        for action in actions:
            try:
                seen, told = self._taken(place, action)
            except _Over as error:
                return Reply(str(error), state=turn.state, calls=len(actions), errors=1, is_lost=True)
            texts.append(shown(seen.observation, self._show) if told is None else f"Error: {told}")
            errors += told is not None or bool(seen.observation.get("error"))
            if is_done := seen.is_done:
                break
        self._end_if(turn.is_last, place)
        return Reply(
            "\n".join(texts),
            is_done=is_done,
            score=place.score,
            state={"session": place.session, "steps": place.steps, "score": place.score},
            calls=len(actions),
            errors=errors,
        )

    def close(self) -> None:
        """Ends all sessions, and the server if it was started for them. Both can be used again."""
        with self._lock:
            idle, self._idle = self._idle, OrderedDict()
        for session, _, _ in idle.values():
            session.close()
        self._server.close()

    def _taken(self, place: _Place, action: dict[str, Any]) -> tuple[Seen, str | None]:
        """Takes an action: what is seen, and what the world had against it."""
        for _ in range(ATTEMPTS):
            try:
                session = self._session(place)
                seen, told = self._stepped(session, action)
            except TooLate as error:
                raise _Over(f"The world gave {error}.") from None
            except SessionLost as error:
                if self._after_loss == "cut":
                    raise _Over(f"The session is lost: {error}.") from None
                continue
            place.steps.append([action, digest(seen)])
            if seen.reward is not None:
                before = place.score or 0.0 if self._score == "sum" else 0.0
                place.score = before + seen.reward
            session.close() if seen.is_done else self._put_back(place, session)
            return seen, told
        raise _Over(f"The session was lost {ATTEMPTS} times at the same action.")

    def _stepped(self, session: Session, action: Mapping[str, Any]) -> tuple[Seen, str | None]:
        try:
            return session.step(action), None
        except Refusal as error:
            if error.code in ENDING:
                session.close()
                raise SessionLost(str(error)) from None
            return Seen({}, None, False), str(error)
        except SessionLost:
            session.close()
            raise

    def _session(self, place: _Place) -> Session:
        """The session of a conversation: the one that waits for it, or a new one that is brought there."""
        with self._lock:
            session, steps, _ = self._idle.pop(place.session, (None, 0, 0.0))
        if session is not None and steps == len(place.steps):
            return session
        if session is not None:
            session.close()
        if place.steps and self._after_loss == "cut":
            raise SessionLost("its world cannot be brought back where it was")
        session = self._begun(place)
        for action, expected in place.steps:
            if digest(self._stepped(session, action)[0]) != expected:
                session.close()
                raise _Over("The session is lost, and the world answered its actions in another way.")
        return session

    def _begun(self, place: _Place) -> Session:
        give_up = time.monotonic() + self._seconds
        while True:
            session = self._server.open(self._seconds)
            try:
                seen = session.reset(place.options)
                break
            except SessionLost:
                session.close()
                raise
            except Refusal as error:
                session.close()
                if error.code != AT_CAPACITY:
                    raise EnvironmentFault(f"the world refuses {dict(place.options)}: {error}") from None
                if not self._made_room() and time.monotonic() > give_up:
                    raise EnvironmentFault(
                        f"the OpenEnv server has no room for another session ({error}); start it with a "
                        "larger max_concurrent_envs, or write a smaller environment.workers"
                    ) from None
                time.sleep(_LOOK_SECONDS)
        if digest(seen) != place.opening:
            session.close()
            raise _Over("The world began in another way than its problem.")
        return session

    def _put_back(self, place: _Place, session: Session) -> None:
        with self._lock:
            self._idle[place.session] = session, len(place.steps), time.monotonic()
            old = [self._idle.popitem(last=False)[1][0] for _ in range(len(self._idle) - self._most)]
        for each in old:
            each.close()

    def _made_room(self) -> bool:
        """Closes the session that waits longest, unless that would cut a conversation that may go on."""
        with self._lock:
            since = next((since for _, _, since in self._idle.values()), None)
            patience = 0.0 if self._after_loss == "replay" else self._seconds
            if since is None or time.monotonic() - since < patience:
                return False
            _, (session, _, _) = self._idle.popitem(last=False)
        session.close()
        return True

    def _end_if(self, is_over: bool, place: _Place) -> None:
        if is_over:
            with self._lock:
                session, _, _ = self._idle.pop(place.session, (None, 0, 0.0))
            if session is not None:
                session.close()


def _place(turn: Turn) -> _Place:
    state, given = turn.state or {}, turn.problem.metadata
    return _Place(
        state.get("session") or uuid4().hex,
        list(state.get("steps", ())),
        state.get("score"),
        given["opening"],
        given["reset"],
    )
