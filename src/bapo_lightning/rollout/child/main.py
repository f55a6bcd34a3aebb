"""The process of a `ChildEngine`: `python -m bapo_lightning.rollout.child.main FD`, where FD is its end of a
pipe to the trainer.

Messages through the pipe, pickled:

    trainer                                  engine
    (sys.path, cores, threads, recipe)   ->  done, version         the pickled recipe makes the engine
    ("generate", requests, sampling)     ->  count, number ... done, generations
    ("stream", call, sampling)           ->  count, number ... done, samples by number
    ("sleep",)                           ->  done, version
    ("weight_digests", seed)             ->  done, digests
    ("load_weights", version)            ->  first | next, wanted  requests the first or the next part
    a WeightPart; None after the last    ->  first | next | done
    a text instead of a part             ->  done, an error        the trainer's reason for sending no more
    None, or the end of the pipe                                   the process ends

The content of "done" is an Outcome: a value, or an error, after which the process continues.

It imports torch after setting its cores, because OpenMP reads them once, when it loads.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import pickle
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any

from bapo_lightning.system.errors import EngineError, outcome_of
from bapo_lightning.system.orphans import end_process, end_with_parent, in_background, print_failure
from bapo_lightning.system.phases import Phase, phase
from bapo_lightning.system.printable import print_printable

if TYPE_CHECKING:
    import torch

    from bapo_lightning.rollout.engine import RolloutEngine, Wanted

PARENT_LOOK_SECONDS = 0.5
COUNT_SECONDS = 0.5  # between two messages about the samples that have ended
END_SECONDS = 2  # after the trainer's death, in which an engine may close itself


class ChildAnswer(StrEnum):
    """First word of each message of the engine's process."""

    COUNT = "count"
    DONE = "done"
    FIRST = "first"
    NEXT = "next"


def main(connection: Connection, parent: int) -> None:
    """Makes the engine, then obeys the trainer, process `parent`, until it ends this process or is gone."""
    # Ctrl-C and a scheduler's SIGTERM are meant for the trainer, which finishes its update first. They get a
    # handler and are not ignored, because programs started here would inherit the latter, and vLLM ends its
    # workers by SIGTERM.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, frame: None)
    faulthandler.enable()
    in_background("watch-parent", partial(watch_parent, parent), end_process)
    engines: list[RolloutEngine] = []
    path, cores, threads, recipe = received(connection)

    def make() -> int:
        sys.path[:] = path
        if cores and hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(0, cores)
        if threads is not None:
            import torch  # the environment alone cannot give it more threads than cores

            torch.set_num_threads(threads)
        engines.append(pickle.loads(recipe)())
        return engines[0].version

    answer(connection, make, traced=False)
    if not engines:
        return
    try:
        while (command := received(connection)) is not None:
            answer(connection, partial(obey, engines[0], connection, *command))
    finally:
        engines[0].close()


def obey(engine: RolloutEngine, connection: Connection, command: str, *arguments: Any) -> Any:
    """Executes one command of the trainer; returns the content of the answer."""
    if command in ("generate", "stream"):
        with phase("sampling") as sampling, counts_sent(connection, sampling):
            return getattr(engine, command)(*arguments)
    if command == "sleep":
        engine.sleep()
    elif command == "weight_digests":
        return engine.weight_digests(*arguments).get(0, {})
    else:
        engine.load_weights(PipedWeights(connection), *arguments)
    return engine.version


@contextlib.contextmanager
def counts_sent(connection: Connection, sampling: Phase) -> Iterator[None]:
    """Context in which the trainer regularly gets the number of samples that have ended."""
    ended = threading.Event()

    def send() -> None:
        reported = 0
        while not ended.wait(COUNT_SECONDS):
            if sampling.done > reported:
                reported = sampling.done
                with contextlib.suppress(OSError):  # the trainer is gone
                    connection.send((ChildAnswer.COUNT, reported))

    thread = in_background("counts", send, print_failure)
    try:
        yield
    finally:
        ended.set()
        thread.join()  # the answer uses the same pipe


def answer(connection: Connection, work: Callable[[], Any], traced: bool = True) -> None:
    """Runs `work` and sends its outcome to the trainer."""
    outcome = outcome_of(work, "the rollout engine failed in its process ({})", traced=traced)
    with contextlib.suppress(OSError):  # the trainer is gone: the next read of the pipe ends this process
        connection.send((ChildAnswer.DONE, outcome))


def received(connection: Connection) -> Any:
    """Returns the trainer's next message; at the pipe's end raises SystemExit, which no engine handles."""
    try:
        return connection.recv()
    except (EOFError, OSError):
        raise SystemExit from None


@dataclass
class PipedWeights:
    """The trainer's weights as a `WeightSource` for the engine."""

    connection: Connection

    def named_weights(self, wanted: Wanted | None = None) -> Iterator[tuple[str, torch.Tensor]]:
        """Yields views of shared memory, part by part. A part's file is removed at the next request."""
        from bapo_lightning.rollout.weight_transport import read_part

        which = ChildAnswer.FIRST
        while True:
            with contextlib.suppress(OSError):
                self.connection.send((which, wanted))
            part = received(self.connection)
            if part is None:
                return
            if isinstance(part, str):
                raise EngineError(part)
            yield from read_part(part)
            which = ChildAnswer.NEXT


def watch_parent(parent: int) -> None:
    """Ends this whole session soon after the trainer's end, even inside native code or with an open pipe."""
    while os.getppid() == parent:
        time.sleep(PARENT_LOOK_SECONDS)
    time.sleep(END_SECONDS)
    os.killpg(os.getpgrp(), signal.SIGKILL)


def run(arguments: Sequence[str]) -> None:
    """Serves on a file descriptor, the first argument; the second is the trainer's process id."""
    descriptor, parent = map(int, arguments)
    end_with_parent(parent)
    print_printable()
    # Otherwise a child of this process would hold the pipe open after its death.
    os.set_inheritable(descriptor, False)
    main(Connection(descriptor), parent)


if __name__ == "__main__":
    # Under the module's own name: the trainer has another __main__ and must find the classes pickled here.
    from bapo_lightning.rollout.child import main as child_main

    child_main.run(sys.argv[1:])
