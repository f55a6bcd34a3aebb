"""Problems of reasoning-gym's procedural data sets (pip extra `reasoning-gym`)."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from bapo_lightning.data.problems.held_out import Part, is_in
from bapo_lightning.rewards.reasoning_gym_score import reasoning_gym
from bapo_lightning.system.errors import DataError
from bapo_lightning.system.orphans import in_background
from bapo_lightning.system.values import Count, Share, Size
from bapo_lightning.types import Problem

FIRST_SECONDS = 15  # that one problem may take; thousands are made
LARGEST = 10_000_000  # a number with so many digits takes a second; a billion digits cannot be interrupted


def check_speed(make: Callable[[], object], what: str, split: Part) -> None:
    """Raises DataError if one problem takes too long to make, for instance with a billion terms."""
    # Python cannot stop a computation in a thread; the thread ends with the process, which this error ends.
    # Any other error is raised again when all problems are made.
    thread = in_background("one problem", make, lambda error: None)
    thread.join(FIRST_SECONDS)
    if thread.is_alive():
        raise DataError(
            f"{what} needs more than {FIRST_SECONDS} s for one problem; write smaller parameters in "
            f"data.{split}"
        )


def reasoning_gym_problems(
    task: str,
    size: Size,
    seed: int,
    parameters: dict[str, Any],
    split: Part,
    validation_share: Share,
    limit: Count | None = None,
) -> list[Problem]:
    """Returns the first `limit` distinct questions of one split among `size` generated entries, in the order
    of generation. A task with few questions repeats them and gives fewer problems.

    `task` names a data set, e.g. "chain_sum", and `parameters` are its options. A hash of its text decides
    which split a question belongs to, see `is_in`. Separate seeds would not separate the splits: entry i of
    seed s is entry i - 1 of seed s + 1. Problems have the `id` "task/seed/index", and as `metadata` the entry
    that the task's scorer reads.

    Raises DataError: reasoning-gym is missing, has no such task or parameter, needs too long for a problem,
    or the split is empty.
    """
    for name, value in parameters.items():
        if isinstance(value, int | float) and abs(value) > LARGEST:
            raise DataError(f"data.{split}.parameters.{name}={value} must be in [-{LARGEST}, {LARGEST}]")
    try:
        entries = reasoning_gym().create_dataset(task, size=size, seed=seed, **parameters)
    except (AssertionError, TypeError, ValueError) as error:  # from its checks of names, keys and ranges
        raise DataError(
            f"reasoning-gym cannot make task={task} with parameters={parameters}: {error}; correct "
            f"data.{split}"
        ) from None
    check_speed(lambda: entries[0], f"reasoning-gym's task={task} with parameters={parameters}", split)
    first_of_question: dict[str, Problem] = {}
    for index, entry in enumerate(_generated(task, size, seed, json.dumps(parameters))):
        question, answer = entry["question"], entry["answer"]
        text = "" if answer is None else str(answer)
        first_of_question.setdefault(question, Problem(f"{task}/{seed}/{index}", question, text, task, entry))
    chosen = [
        problem for question, problem in first_of_question.items() if is_in(split, question, validation_share)
    ]
    if not chosen:
        raise DataError(
            f"none of the {len(first_of_question)} distinct questions of task={task} belongs to {split} with "
            f"validation_share={validation_share}; write a larger size, or another share"
        )
    return chosen[:limit]


@lru_cache(maxsize=1)  # for both splits: some tasks need a minute
def _generated(task: str, size: int, seed: int, parameters: str) -> list[dict[str, Any]]:
    return list(reasoning_gym().create_dataset(task, size=size, seed=seed, **json.loads(parameters)))
