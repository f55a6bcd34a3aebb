"""Commands from the controller (rank 0) to all ranks, and their answers.

    controller                                  worker
    together(name, one payload per rank)  --->  serve: handlers[name](its payload)
    its own part, meanwhile                     |
    all outcomes, in rank order           <---  value or error
    release(one payload per rank)         --->  serve returns its payload
    report_failure(error)                 --->  serve raises ControllerFailed

An error of a rank is an outcome like any other: all ranks finish the command, and the controller knows it
before the next one. A channel has its own gloo group, so that its traffic never mixes with training's,
and a thread may use it during training.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from bapo_lightning.system.errors import Outcome, RankError, RankLost, outcome_of

_RELEASE, _FAILURE = "", "!"  # no command has these names
# A command may come after hours of generation. A rank that ends closes its connections, which the others
# notice immediately.
PATIENCE = timedelta(days=30)
CONNECTION_WORDS = (
    "gloo",
    "Connection closed",
    "Connection reset",
    "Broken pipe",
    "DistBackendError",
    "DistNetworkError",
    "NCCL",
)


class ControllerFailed(RankError):
    """The controller met an error and reports it; the workers end silently."""


class Channel:
    """One end of the connection between the controller and the workers."""

    def __init__(self, rank: int, size: int) -> None:
        """Every rank of the default process group must create its channels in the same order."""
        self.rank, self.size = rank, size
        self._group = dist.new_group(backend="gloo", timeout=PATIENCE)

    def together(self, name: str, payloads: Sequence[Any], local: Callable[[], Any]) -> list[Outcome]:
        """Lets every rank do its part, here `local`; returns outcomes in rank order. Raises RankLost."""
        self._scatter([(name, payload) for payload in payloads])
        outcomes: list[Any] = [None] * self.size
        mine = outcome_on(self.rank, local)
        with rank_loss_raised():
            dist.gather_object(mine, outcomes, dst=0, group=self._group)
        return outcomes

    def release(self, payloads: Sequence[Any]) -> None:
        """On the controller: ends the workers' `serve`, which returns the rank's payload."""
        self._scatter([(_RELEASE, payload) for payload in payloads])

    def report_failure(self, error: BaseException) -> None:
        """On the controller: ends the workers' `serve` with an error."""
        self._scatter([(_FAILURE, f"{type(error).__name__}: {error}")] * self.size)

    def serve(self, handlers: Mapping[str, Callable[[Any], Any]]) -> Any:
        """Obeys the controller until released; returns its payload. Raises ControllerFailed or RankLost."""
        while True:
            received: list[Any] = [None]
            with rank_loss_raised():
                dist.scatter_object_list(received, None, src=0, group=self._group)
            name, payload = received[0]
            if name == _RELEASE:
                return payload
            if name == _FAILURE:
                raise ControllerFailed(payload)
            handler = handlers[name]
            outcome = outcome_on(self.rank, lambda: handler(payload))  # noqa: B023 - called at once
            with rank_loss_raised():
                dist.gather_object(outcome, None, dst=0, group=self._group)

    def all(self, value: Any) -> list[Any]:
        """The `value` of every rank, in rank order. Every rank must call it."""
        gathered: list[Any] = [None] * self.size
        with rank_loss_raised():
            dist.all_gather_object(gathered, value, group=self._group)
        return gathered

    def from_controller(self, value: Any) -> Any:
        """The controller's `value`. Every rank must call it."""
        box = [value]
        with rank_loss_raised():
            dist.broadcast_object_list(box, src=0, group=self._group)
        return box[0]

    def _scatter(self, messages: Sequence[tuple[str, Any]]) -> None:
        with rank_loss_raised():
            dist.scatter_object_list([None], list(messages), src=0, group=self._group)


def outcome_on(rank: int, work: Callable[[], Any]) -> Outcome:
    """Outcome of `work` on a rank; the traceback of a foreign error is printed."""
    return outcome_of(work, f"rank {rank} failed ({{}}); its traceback is above", RankError)


def values(outcomes: Sequence[Outcome]) -> list[Any]:
    """The values of all ranks. Raises the error of the first rank that has one."""
    return [outcome.result() for outcome in outcomes]


@contextmanager
def rank_loss_raised() -> Iterator[None]:
    """Context that turns a broken connection into RankLost."""
    try:
        yield
    except RuntimeError as error:
        if any(word in f"{type(error).__name__} {error}" for word in CONNECTION_WORDS):
            raise RankLost(
                "another rank is gone: the connection to it broke. The run continues from its last "
                "checkpoint with resume=auto"
            ) from error
        raise
