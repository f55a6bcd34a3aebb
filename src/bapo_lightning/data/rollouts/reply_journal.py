"""Replies of an environment that must not get the same turn twice: `replies.jsonl`, a line for each.

    {"key": "5f0c...", "reply": {"text": "933", "calls": 1, ...}}

A run that was killed samples again what came after its checkpoint. Turns that come out as before find their
replies here, and so go on as they did: nothing that a tool changed is changed twice.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections import defaultdict
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bapo_lightning.run_folder.journal import Journal
from bapo_lightning.types import Problem, Reply, Rollout

REPLY_FILE = "replies.jsonl"


class ReplyJournal:
    """Keeps replies, in a file if there is one; any thread may ask.

    Attributes:
        begun: bytes that were written before the last pass began, which a checkpoint may interrupt.
    """

    def __init__(self, path: Path | None = None) -> None:
        """`path` of the file; None keeps replies only from a pass that the engine's death ended."""
        self._journal = Journal(path) if path is not None else None
        self._is_read = path is None  # what an earlier session wrote
        self._known: defaultdict[str, list[Reply]] = defaultdict(list)  # for turns that come again
        self._fresh: list[tuple[str, Reply]] = []  # of the present pass
        self._lock = threading.Lock()
        self.begun = 0

    def begin_pass(self) -> None:
        """Notes that a pass begins; the first one reads what an earlier session wrote."""
        self._fresh.clear()
        if self._journal is not None:
            if not self._is_read:
                self._read(self._journal)
            self.begun = self._journal.size

    def undo_pass(self) -> None:
        """Notes that nothing of the pass remains; its turns may come again."""
        with self._lock:
            for key, reply in self._fresh:
                self._known[key].append(reply)
            self._fresh.clear()

    def known(self, problem: Problem, rollout: Rollout, state: Any) -> Reply | None:
        """Takes away a reply that a rollout's last turn got before."""
        key = _key(problem, rollout, state)
        with self._lock:
            reply = self._known[key].pop(0) if self._known.get(key) else None
            if reply is not None:
                self._fresh.append((key, reply))
        return reply

    def write(self, problem: Problem, rollout: Rollout, state: Any, reply: Reply) -> None:
        """Keeps a reply to a rollout's last turn; it is in the file when this returns."""
        key = _key(problem, rollout, state)
        with self._lock:
            self._fresh.append((key, reply))
            if self._journal is not None:
                self._journal.append([{"key": key, "reply": asdict(reply)}])

    def load(self, size: int) -> None:
        """Leaves out the first `size` bytes, whose passes a checkpoint holds."""
        self.begun, self._is_read = size, self._journal is None

    def _read(self, journal: Journal) -> None:
        """Reads the replies after `begun`, to turns that may come again."""
        self._is_read = True
        journal.repair()
        if not journal.path.exists():
            return
        with journal.path.open("rb") as file, self._lock:
            file.seek(self.begun)
            self._known.clear()
            for line in file:
                row = json.loads(line)
                self._known[row["key"]].append(Reply(**row["reply"]))


def _key(problem: Problem, rollout: Rollout, state: Any) -> str:
    """The name of a rollout's last turn, which follows from everything that led to it."""
    versions = [segment.version for segment in rollout.segments]
    parts = json.dumps([problem.id, versions, state], sort_keys=True).encode()
    return hashlib.blake2b(parts + rollout.token_ids.tobytes(), digest_size=12).hexdigest()
