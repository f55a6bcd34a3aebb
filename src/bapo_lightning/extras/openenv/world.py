"""The environment that plays the worlds of an OpenEnv server with the policy.

    problem (options of a reset) -> session -> reset -> turn -> action -> step -> observation -> ...

A session is a connection, and no checkpoint can hold it. The state of a conversation is therefore its
actions with a digest of each observation: a lost session is rebuilt by a reset and the same actions, and
continues only if everything comes out as before.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Literal
from uuid import uuid4

from bapo_lightning.environments.environment import Turn
from bapo_lightning.extras.openenv.actions import ActionFormat
from bapo_lightning.extras.openenv.observations import digest, shown
from bapo_lightning.extras.openenv.server import LOOK_SECONDS, WorldServer
from bapo_lightning.extras.openenv.session import AT_CAPACITY, ENDING, Refusal, Seen, WorldSession
from bapo_lightning.system.errors import DataError, EnvironmentFault
from bapo_lightning.system.peers import PeerFault, PeerTooLate
from bapo_lightning.system.peers.wire import most_connections
from bapo_lightning.system.printable import read_back
from bapo_lightning.system.values import Seconds, Size
from bapo_lightning.types import Problem, Reply

ATTEMPTS = 3  # to take an action whose session is lost
NO_ACTION = "There is no action in this turn. Please write one."
_ENDS = 64  # sessions that are closed at the same time, as each may take a second or two


class _Over(Exception):
    """The conversation cannot continue."""


@dataclass(slots=True)
class _Place:
    """Position of a conversation in its world."""

    session: str  # name of a session
    steps: list[list[Any]]  # actions, each with the digest of its observation
    score: float | None  # of the steps so far
    opening: str  # digest of the reset's observation
    options: Mapping[str, Any]  # of the reset


class OpenEnv:
    """Environment that passes the actions of a turn to a world, and replies with the observations.

    The conversation ends with the episode. Its score is computed from the world's rewards, also for a
    conversation that a limit ended; without any reward there is none.

    Args:
        server: that has the worlds.
        action: how a turn becomes actions (`actions.py`).
        show: template of the reply, such as "{message}"; None: the whole observation (`observations.py`).
        score: "sum" of the rewards of all steps, or the reward of the "last" one.
        seconds: time limit for the answer to a reset or a step; a conversation that exceeds it is cut.
        sessions: number that stay open between turns; beyond it, those unused for longest are closed.
            Whatever the value, connections take at most a quarter of the files that a process may open.
        after_loss: of a session, "replay" rebuilds it and repeats its actions, and "cut" ends the
            conversation: for worlds whose actions leave something behind.
    """

    is_pure = False

    def __init__(
        self,
        server: WorldServer,
        action: ActionFormat,
        show: str | None = None,
        score: Literal["sum", "last"] = "sum",
        seconds: Seconds = 60.0,
        sessions: Size = 1024,
        after_loss: Literal["replay", "cut"] = "replay",
    ) -> None:
        self._server, self._action, self._show, self._score = server, action, show, score
        self._seconds, self._sessions, self._after_loss = seconds, sessions, after_loss
        self._most, self._open = _most_sessions(), 0  # sessions of all turns and conversations
        # Unused sessions: name -> session, its number of steps, and the time since which it is unused.
        self._idle: OrderedDict[str, tuple[WorldSession, int, float]] = OrderedDict()
        self._lock = threading.Lock()

    @staticmethod
    def machine_problems(options: Mapping[str, Any], run: object = None) -> Iterator[str]:
        """Yields that this machine allows too few files for sessions that cannot be replaced."""
        if options["after_loss"] == "cut" and options["sessions"] > (most := _most_sessions()):
            yield (
                f"sessions={options['sessions']} with after_loss=cut: a process may open {4 * most} files "
                f"here, and a quarter of them are for sessions; write sessions={most}, or raise the limit "
                f"with `ulimit -Hn {4 * options['sessions']}`"
            )

    def start(self, problem: Problem) -> None:
        """Returns no state yet: the first turn opens a session."""
        if not {"reset", "opening"} <= set(problem.metadata):
            raise DataError(
                f"problem {problem.id} is not an OpenEnv world; write environment=none, or data whose "
                "_target_ is bapo_lightning.extras.openenv.problems.openenv_problems"
            )

    def respond(self, turn: Turn) -> Reply:
        """Returns the observations after a turn's actions, also the last turn's, which may bring a reward."""
        place = _place(turn)
        try:
            # In the form in which the state holds them.
            actions = [read_back(action) for action in self._action.actions(turn.text)]
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
                seen, text, failed = self._act(place, action)
            except _Over as error:
                return Reply(str(error), state=turn.state, calls=len(actions), errors=1, is_lost=True)
            texts.append(text)
            errors += failed
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
        self._end(session for session, _, _ in idle.values())
        self._server.close()

    def _act(self, place: _Place, action: dict[str, Any]) -> tuple[Seen, str, bool]:
        """Takes an action: the observation, the policy's text of it, and whether the action failed."""
        for attempt in range(1, ATTEMPTS + 1):
            try:
                session = self._session(place)
                seen, text, failed = self._stepped(session, action)
            except PeerTooLate:
                raise _Over(f"The world gave no answer within {self._seconds:g} s.") from None
            except PeerFault as error:
                if self._after_loss == "cut":
                    raise _Over(f"The session is lost: {error}.") from None
                if attempt == ATTEMPTS:
                    lost = f"The session was lost {ATTEMPTS} times at the same action"
                    raise _Over(f"{lost}, the last time since {error}.") from None
                continue
            place.steps.append([action, digest(seen)])
            if seen.reward is not None:
                before = place.score or 0.0 if self._score == "sum" else 0.0
                place.score = before + seen.reward
            self._end([session]) if seen.is_done else self._put_back(place, session)
            return seen, text, failed
        raise AssertionError("the last attempt returns or raises")

    def _stepped(self, session: WorldSession, action: Mapping[str, Any]) -> tuple[Seen, str, bool]:
        """Takes an action, as `_act`. A session that is lost is closed."""
        try:
            seen = session.step(action)
            return seen, shown(seen.observation, self._show), bool(seen.observation.get("error"))
        except Refusal as error:
            if error.code not in ENDING:
                return Seen(observation={}), f"Error: {error}", True
            self._end([session])
            raise PeerFault(str(error)) from None
        except PeerFault:
            self._end([session])
            raise

    def _session(self, place: _Place) -> WorldSession:
        """The session of a conversation: the one that waits for it, or a new one in the same state."""
        with self._lock:
            session, steps, _ = self._idle.pop(place.session, (None, 0, 0.0))
        if session is not None and steps == len(place.steps):
            return session
        if session is not None:
            self._end([session])
        if place.steps and self._after_loss == "cut":
            raise PeerFault("its world cannot be restored")
        session = self._start_session(place)
        for action, expected in place.steps:
            if digest(self._stepped(session, action)[0]) != expected:
                self._end([session])
                raise _Over("The session is lost, and the world answered its actions differently.")
        return session

    def _start_session(self, place: _Place) -> WorldSession:
        give_up = time.monotonic() + self._seconds
        while True:
            session = self._opened()
            try:
                seen = session.reset(place.options)
                break
            except PeerFault:
                self._end([session])
                raise
            except Refusal as error:
                self._end([session])
                if error.code != AT_CAPACITY:
                    raise PeerFault(f"the world refuses {dict(place.options)}: {error}") from None
                if not self._make_room() and time.monotonic() > give_up:
                    raise EnvironmentFault(
                        f"the OpenEnv server has no room for another session ({error}); start it with a "
                        "larger max_concurrent_envs, or write a smaller environment.workers"
                    ) from None
                time.sleep(LOOK_SECONDS)
        if digest(seen) != place.opening:
            self._end([session])
            raise _Over("The world started differently from its problem.")
        return session

    def _opened(self) -> WorldSession:
        """A new session; if there are too many, those that have waited longest are closed first."""
        with self._lock:
            self._open += 1
            old = self._oldest(self._open - self._most)
        self._end(old)
        try:
            return self._server.open(self._seconds)
        except BaseException:
            with self._lock:
                self._open -= 1
            raise

    def _put_back(self, place: _Place, session: WorldSession) -> None:
        with self._lock:
            self._idle[place.session] = session, len(place.steps), time.monotonic()
            old = self._oldest(len(self._idle) - self._sessions)
        self._end(old)

    def _oldest(self, count: int) -> list[WorldSession]:
        """Removes and returns the `count` sessions that have waited longest, or as many as there are."""
        return [self._idle.popitem(last=False)[1][0] for _ in range(min(count, len(self._idle)))]

    def _make_room(self) -> bool:
        """Closes the session that has waited longest, unless that would cut a running conversation."""
        with self._lock:
            since = next((since for _, _, since in self._idle.values()), None)
            patience = 0.0 if self._after_loss == "replay" else self._seconds
            if since is None or time.monotonic() - since < patience:
                return False
            old = self._oldest(1)
        self._end(old)
        return True

    def _end_if(self, is_over: bool, place: _Place) -> None:
        if is_over:
            with self._lock:
                session, _, _ = self._idle.pop(place.session, (None, 0, 0.0))
            self._end([session] if session is not None else [])

    def _end(self, sessions: Iterable[WorldSession]) -> None:
        """Closes sessions, many at the same time."""
        if not (ended := list(sessions)):
            return
        with ThreadPoolExecutor(min(len(ended), _ENDS), thread_name_prefix="openenv-close") as pool:
            list(pool.map(WorldSession.close, ended))
        with self._lock:
            self._open -= len(ended)


def _most_sessions() -> int:
    """Number of sessions at the same time: half of the connections, as engines have some, too."""
    return max(1, most_connections() // 2)


def _place(turn: Turn) -> _Place:
    state, given = turn.state or {}, turn.problem.metadata
    return _Place(
        state.get("session") or uuid4().hex,
        list(state.get("steps", ())),
        state.get("score"),
        given["opening"],
        given["reset"],
    )
