"""The process of a `ChildEngine`: `python -m bapo_lightning.rollout.child.main FD`, where FD is its end of a
pipe to the trainer.

What goes through the pipe, pickled:

    trainer                                  engine
    (sys.path, cores, threads, recipe)   ->  done, version         the pickled recipe makes the engine
    ("generate", requests, sampling)     ->  done, generations
    ("sleep",)                           ->  done, version
    ("load_weights", version)            ->  first | next          asks for the first or the next part
    a WeightPart; None after the last    ->  first | next | done
    a text instead of a part             ->  failed                the trainer's reason why there are no more
    None, or the end of the pipe                                   the process ends
    anything                             ->  failed, an error      reported; the process goes on

It imports torch after its cores are set: OpenMP looks at them once, when it loads.
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
import traceback
from collections.abc import Callable, Iterator, Sequence
from enum import StrEnum
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any

from bapo_lightning.errors import BapoLightningError, EngineError

if TYPE_CHECKING:
    import torch

    from bapo_lightning.rollout.engine import RolloutEngine

PARENT_LOOK_SECONDS = 0.5
END_SECONDS = 2  # for an engine to close itself after the trainer's death


class Answer(StrEnum):
    """What the engine's process says."""

    DONE = "done"
    FAILED = "failed"
    FIRST = "first"
    NEXT = "next"


def main(connection: Connection, parent: int) -> None:
    """Make the engine, then do as told until the trainer wants no more or is gone.

    Args:
        connection: to the trainer.
        parent: process id of the trainer.
    """
    # Ctrl-C and a scheduler's SIGTERM are for the trainer, which finishes its update first. A handler,
    # because a started program inherits what is ignored, and vLLM ends its workers by SIGTERM.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, frame: None)
    faulthandler.enable()
    threading.Thread(target=end_with_parent, args=(parent,), daemon=True).start()
    made: list[RolloutEngine] = []
    path, cores, threads, recipe = received(connection)

    def make() -> int:
        sys.path[:] = path
        if cores and hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(0, cores)
        if threads is not None:
            import torch  # it takes no more threads than cores from the environment alone

            torch.set_num_threads(threads)
        made.append(pickle.loads(recipe)())
        return made[0].version

    answer(connection, make)
    if not made:
        return
    try:
        while (command := received(connection)) is not None:
            answer(connection, lambda command=command: obeyed(made[0], connection, *command))  # type: ignore[misc]
    finally:
        made[0].close()


def obeyed(engine: RolloutEngine, connection: Connection, command: str, *arguments: Any) -> Any:
    """Do what a message says; returns what is told the trainer."""
    if command == "generate":
        return engine.generate(*arguments)
    if command == "sleep":
        engine.sleep()
    else:
        engine.load_weights(PipedWeights(connection), *arguments)
    return engine.version


def answer(connection: Connection, work: Callable[[], Any]) -> None:
    """Tell the trainer what came of some work. Errors that are not ours may not be known to the trainer, or
    not be picklable.
    """
    try:
        message = Answer.DONE, work()
    except BapoLightningError as error:
        message = Answer.FAILED, error
    except Exception as error:
        traceback.print_exc()
        message = (
            Answer.FAILED,
            EngineError(f"the rollout engine failed in its process ({type(error).__name__}: {error})"),
        )
    with contextlib.suppress(OSError):  # a trainer that is gone: the next look at the pipe ends this process
        connection.send(message)


def received(connection: Connection) -> Any:
    """The trainer's next message; SystemExit, which no engine takes for its own error, when the trainer is
    gone.
    """
    try:
        return connection.recv()
    except (EOFError, OSError):
        raise SystemExit from None


class PipedWeights:
    """The trainer's weights, as a `WeightSource` of the engine's."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def named_weights(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Views of shared memory, part by part; asking for the next part tells the trainer that it may remove
        this one's file.
        """
        from bapo_lightning.rollout.weight_transport import read_part

        wanted = Answer.FIRST
        while True:
            with contextlib.suppress(OSError):
                self._connection.send((wanted, None))
            part = received(self._connection)
            if part is None:
                return
            if isinstance(part, str):
                raise EngineError(part)
            yield from read_part(part)
            wanted = Answer.NEXT


def end_with_parent(parent: int) -> None:
    """End this process and all it started soon after the trainer's end, whatever it is doing then, and
    whoever else holds the pipe.
    """
    while os.getppid() == parent:
        time.sleep(PARENT_LOOK_SECONDS)
    time.sleep(END_SECONDS)
    os.killpg(os.getpgrp(), signal.SIGKILL)


def run(arguments: Sequence[str]) -> None:
    """Serve on the file descriptor named by the first argument; the second is the trainer's process id."""
    descriptor, parent = map(int, arguments)
    os.set_inheritable(
        descriptor, False
    )  # a process below this one would hold the pipe open after this one's death
    main(Connection(descriptor), parent)


if __name__ == "__main__":
    # Under the module's own name: what is pickled here must be found by the trainer, whose __main__ is
    # another.
    from bapo_lightning.rollout.child import main as child_main

    child_main.run(sys.argv[1:])
