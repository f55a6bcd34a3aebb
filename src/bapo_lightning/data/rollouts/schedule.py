"""Schedules of asynchronous runs: what generation and training did in which order, in `schedule.jsonl`.

    {"do": "visit", "clock": 4, "version": 4}    the trainer begins an update, or a validation
    {"do": "sync"}                               it hands its weights to the engine
    {"do": "pass", "version": 4, "evicted": [], "requests": [["0/37+85", [0, 1, 2, 3]]]}
    {"do": "sampled", "finished": ["0/37+85"]}   the pass is over; "lost": true where the engine died in it,
                                                 "rounds": [[0, 2], [1]] where replies came apart (`Rounds`)
    {"do": "scored", "ready": ["0/37+85"], "rejected": []}
    {"do": "evict", "groups": []}                groups that are too old
    {"do": "take", "groups": ["0/12+40"], "filtered": []}
    {"do": "metrics"}, {"do": "validation"}, {"do": "end"}

A group is named by its epoch and its problem, a request by the number of its sample in the group. Rows are
written under the scheduler's lock, so that their order is the order of the events. Tokens depend on seeds and
weights alone, their last bits on what is sampled together; so a run needs no more than this to be repeated
(`scheduled_collector`).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal, get_args

from bapo_lightning.data.rollouts.running_group import RunningGroup
from bapo_lightning.errors import DataError
from bapo_lightning.rollout.engine import GenerationRequest
from bapo_lightning.run_folder.journal import Journal
from bapo_lightning.run_folder.record import SCHEDULE_FILE
from bapo_lightning.types import Group

# What the trainer does; its place among the events of generation matters.
TrainerEvent = Literal["visit", "take", "metrics", "validation", "end"]
TRAINER_EVENTS = get_args(TrainerEvent)
Row = dict[str, Any]


class ScheduleRecorder:
    """Writes the rows of a run."""

    def __init__(self, path: Path | None = None) -> None:
        """`path` of the file; None writes none."""
        self._journal = Journal(path) if path is not None else None

    @property
    def size(self) -> int:
        """Bytes written so far."""
        return self._journal.size if self._journal is not None else 0

    def write(self, do: str, **content: Any) -> None:
        """Writes one event."""
        if self._journal is not None:
            self._journal.append([{"do": do, **content}])

    def write_pass(
        self, version: int, evicted: Iterable[RunningGroup], requests: Sequence[GenerationRequest],
        running: Sequence[RunningGroup],
    ) -> None:  # fmt: skip
        """Writes the begin of a pass under weights of `version` over the `running` groups."""
        if self._journal is None:
            return
        samples: dict[int, list[int]] = {}
        for request in requests:
            samples.setdefault(request.group, []).append(request.index)
        shared = [[name(running[group]), numbers] for group, numbers in samples.items()]
        self.write("pass", version=version, evicted=names(evicted), requests=shared)

    def cut(self, size: int) -> None:
        """Removes the rows after a checkpoint. Raises DataError when the file is shorter than that."""
        if self._journal is not None:
            try:
                self._journal.cut(size)
            except ValueError as error:
                raise DataError(str(error)) from None


def read_schedule(folder: str | Path) -> list[Row]:
    """Reads the schedule of a run. Raises DataError when there is none, or it is damaged or has no end."""
    path = Path(folder, SCHEDULE_FILE)
    if not path.is_file():
        raise DataError(
            f"there is no {path}; give the folder of a finished run with regime.async_generation=true"
        )
    try:
        rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        last = [row["do"] for row in rows][-1]
    except (ValueError, IndexError, KeyError, TypeError):
        raise DataError(f"{path} is no schedule, or damaged; give the folder of another run") from None
    if last != "end":
        raise DataError(f"the run in {folder} did not reach its end; finish it with resume={folder}")
    return rows


def name(group: RunningGroup | Group) -> str:
    """Name of a group in a schedule."""
    return f"{group.item.epoch}/{group.item.problem.id}"


def names(groups: Iterable[RunningGroup | Group]) -> list[str]:
    """Names of groups in a schedule."""
    return [name(group) for group in groups]
