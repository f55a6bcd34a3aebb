"""One started program: its process, the last of its output, and the requests that it makes."""

from __future__ import annotations

import asyncio
import json
import secrets
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

from bapo_lightning.extras.agent.messages import prompt_text, reply_text
from bapo_lightning.extras.agent.requests import Asked, Edits, RequestRefused
from bapo_lightning.system.orphans import BOUND
from bapo_lightning.system.peers.answers import shortened
from bapo_lightning.system.peers.loop import run
from bapo_lightning.system.supervised import Supervised, passed_on, signal_group
from bapo_lightning.system.values import Seconds, Size
from bapo_lightning.types import Problem

Reason = Literal["crashed", "late", "flood", "edited", "differed"]
LARGEST_REWARD = 1e6  # squares of rewards stay within the range of float32
_LOOK_SECONDS, _DRAIN_SECONDS, _END_SECONDS = 0.05, 1.0, 1.0
_LAST_BYTES = 2000  # kept of an output
_LONGEST = 100_000  # bytes of a task that is a variable; Linux takes up to 131,000
_TASK, _KEY, _URL = "AGENT_TASK", "OPENAI_API_KEY", "OPENAI_BASE_URL"


class ProgramLost(Exception):
    """A conversation cannot continue."""

    def __init__(self, reason: Reason, text: str) -> None:
        super().__init__(text)
        self.reason = reason


class Killed(Exception):
    """A signal ended a program, so that it may do better if it is started again."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of a program. A program that exceeds one is ended, and its conversation is cut."""

    seconds: Seconds = 60.0  # from its start or an answer to its next request, or to its end
    requests: Size = 1000  # in one conversation, with those that are refused or repeated
    request_bytes: Size = 1_000_000  # of one request; a longer one is refused
    output_megabytes: Size = 64  # that it writes, of which the last lines are kept


class _Output(asyncio.Protocol):
    def __init__(self, most: float) -> None:
        self.last, self.size, self.is_closed, self._most = b"", 0, asyncio.Event(), most

    def connection_made(self, transport: Any) -> None:
        self.close = transport.close

    def data_received(self, data: bytes) -> None:
        self.last, self.size = (self.last + data)[-_LAST_BYTES:], self.size + len(data)
        if self.size > self._most:
            self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_closed.set()

    def line(self) -> str:
        return (self.last.decode(errors="replace").strip().splitlines() or [""])[-1].strip()


class Program:
    """A command at work on a problem. Other threads call `next_request`, `answer`, `score` and `end`; the
    endpoint calls the rest, in the loop of this process.
    """

    def __init__(
        self,
        command: Sequence[str],
        problem: Problem,
        options: Mapping[str, Any],
        variables: Mapping[str, str],
        key: str,
        url: str,
        limits: Limits,
    ) -> None:
        self.key, self._limits, self._options = key, limits, options
        self.reward_key = f"{key}.{secrets.token_urlsafe(24)}"  # in no variable, which tools could read
        known = problem.metadata
        is_ready = "agent_metadata" in known  # by data=agent: the prompt is the program's
        task, known = (str(known["task"]), known["agent_metadata"]) if is_ready else (problem.prompt, known)
        self._command = [*BOUND, *(part.replace("{task}", task) for part in command)]
        short = {} if "\0" in task or len(task.encode(errors="replace")) > _LONGEST else {_TASK: task}
        self._variables = {**passed_on("HOME"), **variables, **short, _URL: url, _KEY: key}
        fields: dict[str, Any] = {
            "id": problem.id,
            "task": task,
            "answer": problem.answer,
            "source": problem.source,
        }
        fields |= {"metadata": dict(known), "reward_key": self.reward_key}
        self._problem = json.dumps(fields, default=str).encode()
        self.digests, self.texts = list[str](), list[str]()  # of requests; of their answers, one less or all
        self.num_requests = self.num_refused = self.num_edits = self._total = 0
        self._pending: tuple[Asked, asyncio.Future[str]] | None = None
        self._answered = list[tuple[Asked, str]]()  # requests, with the policy's texts
        self._reward: float | None = None
        self._changed = asyncio.Event()
        self._fault: ProgramLost | None = None

    def begin(self) -> None:
        """Starts the command, once the endpoint knows the key."""
        pipe = subprocess.PIPE
        options = {"stdin": pipe, "stdout": pipe, "stderr": pipe, "bufsize": 0, **self._options}
        self._process = Supervised(
            self._command, self._variables, seconds=_END_SECONDS, ask=signal_group, **options
        )
        self._out, self._errors = run(self._listen())

    def next_request(self) -> Asked | None:
        """Waits for the program's next request; None if it has ended well. Raises ProgramLost, or Killed."""
        return run(self._next())

    def answer(self, text: str) -> None:
        """Gives the program the policy's text as the answer to its request."""
        run(self._answer(text))

    def news(self, request: Asked, edits: Edits) -> tuple[str, int | None]:
        """Returns what a request adds to the answered ones, and the number of the answer that it follows; -1:
        none; None: the last. Raises ProgramLost if it changes what came before, unless such `edits` are
        allowed; an ignored one counts as a refused request. A later choice follows what the first one does.
        """
        if request.choice:
            return self._begun_with(self.digests.index(replace(request, choice=0).digest), request)
        if edits != "branch":  # earlier ones are compared with no more
            del self._answered[:-1]
        if (text := _continued(request, self._answered)) is not None:
            return text, None
        self.num_edits += 1
        last, given = self._answered[-1]
        if edits == "ignore" and (added := last.news(given, request, edits)) is not None:
            self.num_refused += 1
            return reply_text(added), None
        if edits == "branch" and (place := _branched(request, self._answered)) is not None:
            text, number = place
            return text, None if number == len(self._answered) - 1 else number
        raise ProgramLost("edited", "The program changed the conversation before its last answer.")

    def _begun_with(self, first: int, request: Asked) -> tuple[str, int]:
        """What a later choice adds, and after which answer: as the `first` choice, by its number."""
        before = self._answered[:first]
        if not before:
            return prompt_text(request.messages, request.tools), -1
        if (text := _continued(request, before)) is not None:
            return text, first - 1
        place = _branched(request, before)
        assert place is not None  # the first choice was answered
        return place

    def score(self, has_ended: bool) -> float | None:
        """The reward that the program posted, or else, if it has ended, its last line if that is a number."""
        if self._reward is not None or not has_ended:
            return self._reward
        try:
            return judged_reward(float(self._out.line()))
        except (ValueError, RequestRefused):
            return None

    def is_running(self) -> bool:
        """Returns whether it has not ended."""
        return self._process.process.poll() is None

    def take_counts(self) -> tuple[int, int, int]:
        """Returns numbers of requests, of those refused, and of edits since the last call."""
        counts = self.num_requests, self.num_refused, self.num_edits
        self.num_requests = self.num_refused = self.num_edits = 0
        return counts

    def end(self) -> None:
        """Ends the program and all that it started in its session."""
        self._process.end()
        run(self._forget())

    def count(self, is_refused: bool = False) -> None:
        """Notes a request, or that it was refused. Raises RequestRefused if there were too many."""
        if is_refused:
            self.num_refused += 1
            return
        self.num_requests += 1
        self._total += 1
        if self._total > self._limits.requests:
            most = self._limits.requests
            self._fault = ProgramLost("flood", f"The program made more than {most} requests.")
            self._changed.set()
            raise RequestRefused(f"a conversation has at most {most} requests", 403)

    async def completed(self, request: Asked) -> str:
        """Returns the policy's text for a request; a repeated one gets its answer again."""
        digest = request.digest
        if digest in self.digests[: len(self.texts)]:
            return self.texts[self.digests.index(digest)]
        if self._pending is None:
            self._pending = request, asyncio.get_running_loop().create_future()
            self.digests.append(digest)
            self._changed.set()
        elif self._pending[0].digest != digest:
            raise RequestRefused(
                "a conversation has one request at a time, and another one waits for its answer"
            )
        return await asyncio.shield(self._pending[1])

    def reward(self, value: Any) -> None:
        """Notes the reward that the program posts. Raises RequestRefused, see `judged_reward`."""
        self._reward = judged_reward(value)

    async def _listen(self) -> tuple[_Output, _Output]:
        loop, outputs = asyncio.get_running_loop(), list[_Output]()
        most = self._limits.output_megabytes * 1e6
        # In a pipe, which is empty once it was read: what the program starts finds the answer neither there
        # nor in a variable.
        stdin, _ = await loop.connect_write_pipe(asyncio.BaseProtocol, self._process.process.stdin)
        stdin.write(self._problem)
        stdin.write_eof()
        for pipe in (self._process.process.stdout, self._process.process.stderr):
            outputs.append((await loop.connect_read_pipe(partial(_Output, most), pipe))[1])
        return outputs[0], outputs[1]

    async def _next(self) -> Asked | None:
        loop = asyncio.get_running_loop()
        give_up = loop.time() + self._limits.seconds
        while True:
            if self._fault is not None:
                raise self._fault
            if self._out.size + self._errors.size > self._limits.output_megabytes * 1e6:
                raise ProgramLost("flood", f"The program wrote more than {self._limits.output_megabytes} MB.")
            if self._pending is not None:
                return self._pending[0]
            if (code := self._process.process.poll()) is not None:
                await self._ended(code)
                return None
            if loop.time() > give_up:
                raise ProgramLost("late", f"No request and no end came within {self._limits.seconds:g} s.")
            with suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), _LOOK_SECONDS)
            self._changed.clear()

    async def _ended(self, code: int) -> None:
        signal_group(self._process.process, 9)  # children that keep its output open
        for output in (self._out, self._errors):
            with suppress(TimeoutError):
                await asyncio.wait_for(output.is_closed.wait(), _DRAIN_SECONDS)
        said = shortened(self._errors.line() or self._out.line())
        if code < 0:
            raise Killed(f"signal {-code} ended it")
        if code:
            raise ProgramLost("crashed", f"The program ended with code {code}: {said}")

    async def _answer(self, text: str) -> None:
        assert self._pending is not None
        (request, future), self._pending = self._pending, None
        self.texts.append(text)
        self._answered.append((request, text))
        future.set_result(text)

    async def _forget(self) -> None:
        for output in (self._out, self._errors):  # which children in other sessions may keep open
            output.close()
        if self._pending is not None:
            self._pending[1].cancel()


def _continued(request: Asked, answered: Sequence[tuple[Asked, str]]) -> str | None:
    """What a request adds to the request that was answered last; None if it changes what came before."""
    last, given = answered[-1]
    added = last.news(given, request)
    return None if added is None else reply_text(added)


def _branched(request: Asked, answered: Sequence[tuple[Asked, str]]) -> tuple[str, int] | None:
    """What a request adds to the answered one that it repeats furthest, and its number; -1: it is a whole
    prompt. None if it can be neither.
    """
    fits = [
        (len(before.messages), len(before.messages[-1]["content"]), number, reply_text(added))
        for number, (before, given) in enumerate(answered)
        if (added := before.news(given, request, "branch")) is not None
    ]
    if fits:
        *_, number, text = max(fits)
        return text, number
    if request.is_chat and request.messages[-1]["role"] != "assistant":
        return prompt_text(request.messages, request.tools), -1
    return None


def judged_reward(value: Any) -> float:
    """Returns a reward as a score has it. Raises RequestRefused unless it is a number of a usual size."""
    if type(value) not in (int, float) or not abs(value) <= LARGEST_REWARD:
        raise RequestRefused(f"the reward must be a number from -{LARGEST_REWARD:g} to {LARGEST_REWARD:g}")
    return float(value)
