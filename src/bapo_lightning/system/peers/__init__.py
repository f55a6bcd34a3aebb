"""The border: everything that comes from a peer over HTTP or a WebSocket is checked here before it is used.

`wire` has `ask` (one question, one answer, from any thread) and `Wire` (the same inside an event loop, and
answers that come line by line); `conversation` has `Conversation` (questions and answers over a WebSocket);
`answers` has the types of a peer's answers. Everything that a peer can do wrong becomes one exception,
`PeerFault`, with one sentence that names it: the peer cannot be reached, answers too late or too much, breaks
off, or gives an impossible answer. Subclasses are `PeerTooLate`, `PeerUnasked`, and `PeerRefusal` with the
HTTP status of an answer that refuses the question.

Redirects are never followed, proxies and logins of the environment are never used, cookies are not kept, and
a secret goes only to the address that it was given with.
"""

from __future__ import annotations

from bapo_lightning.system.errors import BapoLightningError


class PeerFault(BapoLightningError, RuntimeError):
    """A peer did something forbidden; the message names the peer."""

    def __str__(self) -> str:
        return str(self.args[0])


class PeerTooLate(PeerFault):
    """A peer did not answer in time."""


class PeerRefusal(PeerFault):
    """A peer refused a question, with an HTTP status."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message, status)
        self.status = status


class PeerUnasked(PeerFault):
    """A peer spoke without being asked."""

    def __init__(self, message: str, said: str) -> None:
        super().__init__(message, said)
        self.said = said
