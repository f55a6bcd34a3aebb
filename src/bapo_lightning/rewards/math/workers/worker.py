"""A verifier worker: reads a gold answer and an answer from its connection, sends back a verdict, and so on.

A message in is JSON `[gold, answer, seconds]`. A message out is `[status, reason, is_last]` with a status of
`types.ScoreStatus`; after its last message the worker ends.
"""

from __future__ import annotations

import json
from multiprocessing.connection import Connection

from bapo_lightning.rewards.math.algebra import equivalent
from bapo_lightning.rewards.math.size_limit import TooLarge
from bapo_lightning.rewards.math.workers.sandbox import MEGABYTE, Sandbox, limit_cpu_seconds, peak_memory
from bapo_lightning.types import ScoreStatus


def serve(connection: Connection, memory_megabytes: int) -> None:
    """Judges until the other end closes. A worker that used most of its memory ends after its verdict."""
    sandbox = Sandbox(memory_megabytes)
    sandbox.enter()
    memory_at_start = peak_memory()
    while True:
        try:
            gold, answer, seconds = json.loads(connection.recv_bytes())
        except (EOFError, OSError):
            return
        limit_cpu_seconds(seconds)
        sandbox.refusals.clear()
        status, reason = judge(gold, answer)
        swollen = peak_memory() - memory_at_start > memory_megabytes * MEGABYTE // 2
        if status is ScoreStatus.WRONG and (sandbox.refusals or swollen):
            # The libraries take an exception for "not equal", so that this verdict means nothing.
            status, reason = ScoreStatus.FAILED, ", ".join(sorted(set(sandbox.refusals))) or "memory"
        connection.send_bytes(json.dumps([status, reason, swollen]).encode())
        if swollen:
            return


def judge(gold: str, answer: str) -> tuple[ScoreStatus, str]:
    """Returns the status of the answer, and the reason if judging failed."""
    try:
        return (ScoreStatus.CORRECT if equivalent(gold, answer) else ScoreStatus.WRONG), ""
    except TooLarge as error:
        return ScoreStatus.FAILED, str(error)
    except (RecursionError, MemoryError) as error:
        return ScoreStatus.FAILED, type(error).__name__
    except Exception as error:  # whatever the libraries raise on text that a policy made up
        return ScoreStatus.FAILED, f"{type(error).__name__}: {error}"[:200]
