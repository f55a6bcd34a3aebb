"""The event loop of this process that talks to peers, and tasks that report their failure to an owner."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine
from functools import cache
from typing import Any, TypeVar

from bapo_lightning.system.orphans import end_process, in_background

Result = TypeVar("Result")
_KEPT: set[asyncio.Task[None]] = set()  # the loop itself holds its tasks only weakly


@cache
def _loop(owner: int) -> asyncio.AbstractEventLoop:
    """The loop of a process; a fork does not have the thread that runs its parent's loop."""
    loop = asyncio.new_event_loop()
    in_background("peers", loop.run_forever, end_process)
    return loop


def run(work: Coroutine[Any, Any, Result]) -> Result:
    """Runs the work in the loop of this process and waits for it; an interruption cancels it."""
    future = asyncio.run_coroutine_threadsafe(work, _loop(os.getpid()))
    try:
        return future.result()
    except BaseException:
        future.cancel()
        raise


def spawn(work: Coroutine[Any, Any, None], failed: Callable[[BaseException], object]) -> asyncio.Task[None]:
    """Starts a task of the running loop and passes its exception, unless it is cancelled, to `failed`."""
    task = asyncio.ensure_future(work)
    _KEPT.add(task)

    def ended(task: asyncio.Task[None]) -> None:
        _KEPT.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            failed(error)

    task.add_done_callback(ended)
    return task
