"""Problems whose prompts are what a program asks first."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace

from bapo_lightning.extras.agent.endpoint import Endpoint
from bapo_lightning.extras.agent.program import Killed, ProgramLost
from bapo_lightning.extras.agent.requests import TEXT, Asked
from bapo_lightning.system.errors import DataError, EnvironmentFault
from bapo_lightning.system.values import Workers
from bapo_lightning.types import Problem


def agent_problems(tasks: Sequence[Problem], endpoint: Endpoint, workers: Workers = 4) -> list[Problem]:
    """Returns the tasks with the messages and tools of the program's first request; it is run once for each
    up to that request, twice for the first task. `metadata` has "messages", "tools", the "task", and the
    "agent_metadata" that the program gets, which are the task's own.

    Raises DataError: a program makes no request, or another one at its second run.
    """

    def opened(task: Problem) -> Asked:
        program = endpoint.start(task)
        try:
            if (request := program.next_request()) is None:
                raise ProgramLost("differed", "The program ended without a request.")
            return request
        finally:
            endpoint.end(program)

    with closing(endpoint), ThreadPoolExecutor(workers, thread_name_prefix="agent-problems") as pool:
        try:
            first = list(pool.map(opened, [*tasks, *tasks[:1]]))
        except (ProgramLost, Killed, EnvironmentFault) as error:
            raise DataError(f"the program of environment=agent cannot make problems: {error}") from None
    if tasks and first[0].digest != first[-1].digest:
        raise DataError(
            f"the program asks differently each time about {tasks[0].id}, so that its request cannot be a "
            "prompt; leave dates, random names and temporary folders out of its first messages"
        )
    return [_problem(task, request) for task, request in zip(tasks, first, strict=False)]


def _problem(task: Problem, request: Asked) -> Problem:
    kept = {name: value for name, value in task.metadata.items() if name not in ("messages", "tools")}
    known = {**kept, "agent_metadata": dict(task.metadata), "task": task.prompt}
    if request.messages[0]["role"] == TEXT:
        return replace(task, prompt=request.messages[0]["content"], metadata=known)
    opening = {"messages": list(request.messages), "tools": list(request.tools)}
    return replace(task, metadata=known | opening)
