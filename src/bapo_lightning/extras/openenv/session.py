"""Sessions of an OpenEnv server: JSON over a WebSocket, with a separate world for each connection.

    {"type": "reset", "data": {"seed": 7}}  ->  {"type": "observation", "data": SEEN}
    {"type": "step", "data": ACTION}        ->  SEEN: {"observation": {...}, "reward": 0.5, "done": false}
    refused requests                        ->  {"type": "error", "data": {"code": ..., "message": ...}}

Source: `openenv.core.env_server` of openenv-core 0.3.0 and openenv 0.10.0, which use the same protocol. Every
answer is checked here; an unusable answer is a PeerFault, as if the server had closed the session.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from annotated_types import Ge, Le, MaxLen
from pydantic import Field

from bapo_lightning.system.peers import PeerFault, PeerUnasked
from bapo_lightning.system.peers.answers import Answer, Json, judged
from bapo_lightning.system.peers.conversation import Conversation

AT_CAPACITY = "CAPACITY_REACHED"
ENDING = ("FACTORY_ERROR", "SESSION_ERROR")  # codes after which the server closes the session
LONGEST_TEXT = 1 << 20  # of an answer that a policy can read
QUIET_SECONDS = 0.05  # before a step, in which a second answer to the previous question would arrive
LARGEST_REWARD = 1e12  # squares of sums of rewards stay finite in float32


class Refusal(Exception):
    """The server could not do what was requested; the session continues unless the code ends it."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class Seen(Answer):
    """A world's observation after a reset or a step."""

    observation: dict[str, Json]
    reward: Annotated[float, Ge(-LARGEST_REWARD), Le(LARGEST_REWARD)] | None = None
    is_done: bool = Field(default=False, alias="done")


_Text = Annotated[str, MaxLen(LONGEST_TEXT)]


class _FieldError(Answer):
    loc: tuple[str | int, ...] = ()
    msg: _Text = ""


class _Trouble(Answer):
    message: _Text
    code: str = ""
    errors: tuple[_FieldError, ...] | None = None

    def text(self) -> str:
        """The message, with the first field that a validation refused."""
        for error in (self.errors or ())[:1]:
            return f"{self.message}: {'.'.join(map(str, error.loc)) or 'action'}: {error.msg}"
        return self.message


class _Message(Answer):
    type: Literal["observation", "error"]
    data: Seen | _Trouble


class WorldSession:
    """One connection, used by one thread at a time. Raises PeerFault if it cannot be opened."""

    def __init__(self, url: str, seconds: float) -> None:
        self._url, self._seconds = url, seconds
        self._conversation = Conversation(url, seconds)
        self._heard = 0.0  # time of the newest answer

    def reset(self, options: Mapping[str, Any]) -> Seen:
        """Starts an episode. Raises Refusal, PeerFault or PeerTooLate."""
        return self._ask({"type": "reset", "data": dict(options)})

    def step(self, action: Mapping[str, Any]) -> Seen:
        """Takes an action. Raises Refusal, PeerFault or PeerTooLate."""
        self.listen()
        return self._ask({"type": "step", "data": dict(action)})

    def listen(self) -> None:
        """Raises PeerFault if the server sends more than was requested. Answers have no numbers: an extra one
        would be mistaken for the answer to the next question.
        """
        self._conversation.listen(max(0.0, self._heard + QUIET_SECONDS - time.monotonic()))

    def close(self) -> None:
        """Ends the session, on the server too."""
        self._conversation.close({"type": "close"})

    def _ask(self, question: Mapping[str, Any]) -> Seen:
        try:
            answer = self._conversation.ask(_Message, question, self._seconds)
        except PeerUnasked as fault:  # a full server sends this to every client
            if AT_CAPACITY not in fault.said:
                raise
            answer = judged(_Message, fault.said, self._url)
            if not (isinstance(answer.data, _Trouble) and answer.data.code == AT_CAPACITY):
                raise fault from None
        self._heard = time.monotonic()
        if (answer.type == "error") is isinstance(answer.data, Seen):
            raise PeerFault(f"{self._url} sent data that do not fit the type {answer.type!r}")
        if isinstance(answer.data, _Trouble):
            raise Refusal(answer.data.code, answer.data.text())
        return answer.data
