"""Schedules of asynchronous runs: the order of events in generation and training, in `schedule.jsonl`.

    {"do": "visit", "clock": 4, "version": 4}    the trainer begins an update, or a validation
    {"do": "sync"}                               it hands its weights to the engine
    {"do": "pass", "version": 4, "evicted": [], "requests": [["0/37+85", [0, 1, 2, 3]]]}
    {"do": "sampled", "finished": ["0/37+85"]}   the pass is over; "lost": true if the engine died in it,
                                                 "rounds": [[0, 2], [1]] if replies came apart (`Rounds`)
                                                 "steps": 21 in a stream, if it was not eight
    {"do": "scored", "ready": ["0/37+85"], "rejected": []}
    {"do": "evict", "groups": []}                groups that are too old
    {"do": "take", "groups": ["0/12+40"], "filtered": []}
    {"do": "metrics"}, {"do": "validation"}, {"do": "end"}

In a stream a pass is some decoding steps, its requests are those that begin in it, and two events are added:

    {"do": "replies", "groups": [["0/37+85", [2]]]}    replies of the environment to these samples are taken
    {"do": "resumed"}                                  a new process: the engine has no requests

A group is named by its epoch and its problem, a request by the number of its sample in the group. Rows are
written under the scheduler's lock, so that their order is the order of the events. Tokens depend only on
seeds and weights, and their last bits on which requests are sampled together; so a schedule is enough to
repeat a run (`scheduled_collector`).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal, get_args

from bapo_lightning.data.rollouts.observer import AnyGroup, FileObserver, Groups, Moves, Requests, Running
from bapo_lightning.data.rollouts.running_group import STEPS, SampledPass
from bapo_lightning.system.errors import DataError
from bapo_lightning.system.run_folder.record import SCHEDULE_FILE
from bapo_lightning.types import Group

# Events of the trainer; their places among the events of generation matter.
TrainerEvent = Literal["visit", "take", "metrics", "validation", "end"]
TRAINER_EVENTS = get_args(TrainerEvent)
Row = dict[str, Any]
# Fields of each event's rows: required, optional.
_FIELDS: dict[str, tuple[dict[str, type], dict[str, type]]] = {
    "visit": ({"clock": int, "version": int}, {}),
    "pass": ({"version": int, "evicted": list, "requests": list}, {}),
    "sampled": ({"finished": list}, {"lost": bool, "rounds": list, "steps": int}),
    "scored": ({"ready": list, "rejected": list}, {}),
    "evict": ({"groups": list}, {}),
    "take": ({"groups": list, "filtered": list}, {}),
    "replies": ({"groups": list}, {}),
    **{event: ({}, {}) for event in ("sync", "resumed", "metrics", "validation", "end")},
}


class ScheduleRecorder(FileObserver):
    """Writes the rows of a run."""

    size_key = "schedule_size"

    def on_event(self, event: str, **content: Any) -> None:
        """See `Observer`."""
        self.journal.append([{"do": event, **content}])

    def on_pass(self, engine_version: int, evicted: Running, requests: Requests, running: Running) -> None:
        """See `Observer`."""
        samples: dict[int, list[int]] = {}
        for request in requests:
            samples.setdefault(request.group, []).append(request.index)
        recorded = [[*names([running[group]]), numbers] for group, numbers in samples.items()]
        self.on_event("pass", version=engine_version, evicted=names(evicted), requests=recorded)

    def on_sampled(self, sampled: SampledPass, rollouts: Moves, finished: Running) -> None:
        """See `Observer`."""
        apart = {"rounds": sampled.rounds} if sampled.rounds else {}
        how: dict[str, Any] = {"lost": True} if sampled.is_lost else apart
        if sampled.steps not in (0, STEPS):
            how["steps"] = sampled.steps
        self.on_event("sampled", finished=names(finished), **how)

    def on_scored(self, retried: Groups, ready: Groups, rejected: Groups, seconds: float) -> None:
        """See `Observer`."""
        self.on_event("scored", ready=names(ready), rejected=names(rejected))

    def on_evict(self, groups: Sequence[AnyGroup], version: int) -> None:
        """See `Observer`; running groups are in the row of the pass that follows."""
        if scored := [group for group in groups if isinstance(group, Group)]:
            self.on_event("evict", groups=names(scored))

    def on_take(self, batch: Groups, filtered: Groups, version: int) -> None:
        """See `Observer`."""
        self.on_event("take", groups=names(batch), filtered=names(filtered))


def read_schedule(folder: str | Path) -> list[Row]:
    """Reads the schedule of a run. Raises DataError if it is missing or damaged, or has no end."""
    path = Path(folder, SCHEDULE_FILE)
    if not path.is_file():
        raise DataError(
            f"there is no {path}; give the folder of a finished run with regime.async_generation=true"
        )
    try:
        with path.open(encoding="utf-8") as lines:
            rows = [json.loads(line) for line in lines]
        if not all(map(_is_row, rows)):
            raise ValueError
        last = rows[-1]["do"]
    except (ValueError, IndexError, KeyError, TypeError, RecursionError):
        raise DataError(f"{path} is not a schedule, or is damaged; give the folder of another run") from None
    if last != "end":
        raise DataError(f"the run in {folder} did not reach its end; finish it with resume={folder}")
    return rows


def _is_row(row: Any) -> bool:
    event = row.get("do") if isinstance(row, dict) else None
    if not isinstance(event, str) or event not in _FIELDS:
        return False
    needed, optional = _FIELDS[event]
    types = {"do": str, **needed, **optional}
    return needed.keys() <= row.keys() <= types.keys() and all(
        type(value) is types[name] for name, value in row.items()
    )


def names(groups: Iterable[AnyGroup]) -> list[str]:
    """Returns the names of groups in a schedule."""
    return [name_of(group) for group in groups]


def name_of(group: AnyGroup) -> str:
    """Returns the name of a group in a schedule."""
    return f"{group.item.epoch}/{group.item.problem.id}"
