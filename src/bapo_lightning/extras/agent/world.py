"""The environment that runs a program for each conversation, and answers it with the policy's turns.

    problem -> program -> request -> turn -> answer -> next request: what is new in it -> turn -> ... -> end

A process is in no checkpoint. The state of a conversation is therefore the digests of the program's requests
with their answers: a lost program is started again and gets the same answers to the same requests.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, get_args
from uuid import uuid4

from bapo_lightning.environments.environment import Turn
from bapo_lightning.extras.agent.endpoint import Endpoint
from bapo_lightning.extras.agent.program import Killed, Program, ProgramLost, Reason
from bapo_lightning.extras.agent.requests import Edits
from bapo_lightning.system.values import Size
from bapo_lightning.types import Problem, Reply

_LOST = "lost"  # entry of a state, with the reason
ATTEMPTS = 3  # to get the next request of a program that is killed


@dataclass(frozen=True, slots=True)
class _Progress:
    """Position of a conversation in its program."""

    name: str
    asked: list[str]  # digests of the requests; none before the first
    answers: list[str]  # texts of the policy
    seconds: float = 0.0  # in which the run waited for the program
    edits: int = 0  # requests that changed the conversation

    def seconds_with(self, begun: float) -> float:
        """Returns `seconds` with those since a time of the monotonic clock."""
        return round(self.seconds + time.monotonic() - begun, 3)


class Agent:
    """Environment that hands a turn to a program as the answer to its request, and replies with what its next
    request adds. The conversation ends with the program, which may give it a score.

    Args:
        endpoint: that starts the programs.
        programs: number that wait between turns; beyond it, those that wait longest are ended, and started
            again if their conversations continue.
        edits: of what the policy has read or written. A program that makes some loses the conversation
            ("cut"); or the policy continues with what it read and wrote ("ignore"), as long as the request
            has the same roles in the same order, and new messages behind them; or the request begins a
            branch after the last answer that it repeats ("branch"), which becomes another sample.
    """

    is_pure = False

    def __init__(self, endpoint: Endpoint, programs: Size = 128, edits: Edits = "cut") -> None:
        self._endpoint, self._programs, self._edits = endpoint, programs, edits
        endpoint.makes_branches = edits == "branch"
        self._idle: OrderedDict[str, Program] = OrderedDict()
        self._lock = threading.Lock()

    def start(self, problem: Problem) -> None:
        """Returns no state yet: the first turn starts the program."""

    def respond(self, turn: Turn) -> Reply:
        """Returns what the program's next request adds, or its end."""
        state: Mapping[str, Any] = turn.state or asdict(_Progress(uuid4().hex, [], []))
        place, closes, begun = _Progress(**state), self._endpoint.closes, time.monotonic()
        try:
            for _ in range(ATTEMPTS):
                try:
                    return self._reply(turn, place, closes)
                except Killed as error:
                    lost = ProgramLost("crashed", f"The program was killed {ATTEMPTS} times: {error}.")
                except (ValueError, TypeError, RecursionError) as error:  # of two that cannot be compared
                    raise ProgramLost("differed", f"The requests cannot be compared: {error}.") from None
            raise lost
        except ProgramLost as error:
            self._endpoint.check(closes)
            edits = place.edits + (error.reason == "edited")
            changed = {"edits": edits, "seconds": place.seconds_with(begun), _LOST: error.reason}
            state = {**state, **changed}
            return Reply(str(error), state=state, calls=1, errors=1, is_lost=True)

    def metrics(self, replies: Sequence[Reply]) -> dict[str, float]:
        """Returns means and shares over the conversations of an update that got a reply."""
        last = {reply.state["name"]: reply.state for reply in replies}  # in the order of a conversation
        if not (count := len(last)):
            return {}
        reasons = Counter(state.get(_LOST) for state in last.values())
        return {
            "agent/requests_mean": sum(reply.calls for reply in replies) / count,
            "agent/refused_mean": sum(reply.errors for reply in replies) / count,
            "agent/edits_mean": sum(state.get("edits", 0) for state in last.values()) / count,
            "agent/branches_mean": 1 + sum(reply.after is not None for reply in replies) / count,
            "agent/program_seconds": sum(state.get("seconds", 0.0) for state in last.values()) / count,
            **{f"agent/{_LOST}_{reason}": reasons[reason] / count for reason in get_args(Reason)},
        }

    def close(self) -> None:
        """Ends all programs. The environment can be used again."""
        with self._lock:
            self._idle.clear()
            self._endpoint.close()

    def _reply(self, turn: Turn, place: _Progress, closes: int) -> Reply:
        begun = time.monotonic()
        program = self._program(turn.problem, place, closes)
        try:
            program.answer(turn.text)
            request = program.next_request()
            is_over = request is None or turn.is_last
            text, after = ("", None) if request is None or is_over else program.news(request, self._edits)
        except BaseException:
            self._endpoint.end(program)
            raise
        calls, errors, edits = program.take_counts()
        digests, given = list(program.digests), list(program.texts)
        seconds = place.seconds_with(begun)
        state = asdict(_Progress(place.name, digests, given, seconds, place.edits + edits))
        if is_over:
            self._endpoint.end(program)
            self._endpoint.check(closes)
            return Reply("", request is None, program.score(has_ended=request is None), state, calls, errors)
        with self._lock:
            self._endpoint.check(closes)  # if not, the program has ended
            self._idle[place.name] = program
            spare = len(self._idle) - self._programs
            old = [self._idle.popitem(last=False)[1] for _ in range(spare)]
        for each in old:
            self._endpoint.end(each)
        return Reply(text, state=state, calls=calls, errors=errors, after=after)

    def _program(self, problem: Problem, place: _Progress, closes: int) -> Program:
        """The program of a conversation, which waits for an answer; started again if it is not there."""
        with self._lock:
            program = self._idle.pop(place.name, None)
        if program is not None:
            known = place.asked == program.digests and place.answers == program.texts
            if known and program.is_running():  # a client may have waited too long, and ended it
                return program
            self._endpoint.end(program)
        program = self._endpoint.start(problem, closes)
        try:
            self._replay(program, problem, place)
        except BaseException:
            self._endpoint.end(program)
            raise
        if place.answers:  # its requests were counted before
            program.take_counts()
        return program

    def _replay(self, program: Program, problem: Problem, place: _Progress) -> None:
        for number in range(len(place.answers) + 1):
            request = program.next_request()
            if request is None and number == 0:
                raise ProgramLost("differed", "The program ended without a request.")
            if request is None or (place.asked and request.digest != place.asked[number]):
                raise ProgramLost("differed", "The program was started again, and asked differently.")
            if not place.asked and not request.begins(problem):
                raise ProgramLost("differed", "The program began differently from its problem.")
            if number < len(place.answers):
                program.answer(place.answers[number])
