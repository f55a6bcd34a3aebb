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
    """Keeps replies in a file; any thread may ask.

    Attributes:
        begun: bytes that were written before the last pass began, which a checkpoint may interrupt.
    """

    def __init__(self, path: Path | None = None) -> None:
        """`path` of the file; None keeps nothing."""
        self._journal = Journal(path) if path is not None else None
        self._known: defaultdict[str, list[Reply]] = defaultdict(list)
        self._lock = threading.Lock()
        self.begun = 0

    def begin_pass(self) -> None:
        """Notes that a pass begins."""
        if self._journal is not None:
            self.begun = self._journal.size

    def key(self, problem: Problem, rollout: Rollout, state: Any) -> str:
        """Returns the name of a rollout's last turn, which follows from everything that led to it; empty
        where nothing is kept.
        """
        if self._journal is None:
            return ""
        versions = [segment.version for segment in rollout.segments]
        parts = json.dumps([problem.id, versions, state], sort_keys=True).encode()
        return hashlib.blake2b(parts + rollout.token_ids.tobytes(), digest_size=12).hexdigest()

    def known(self, key: str) -> Reply | None:
        """Takes away a reply that an earlier life of the run got to this turn."""
        with self._lock:
            return self._known[key].pop(0) if self._known.get(key) else None

    def write(self, key: str, reply: Reply) -> None:
        """Keeps a reply; it is in the file when this returns."""
        if self._journal is not None:
            with self._lock:
                self._journal.append([{"key": key, "reply": asdict(reply)}])

    def load(self, size: int) -> None:
        """Reads the replies that were written after the first `size` bytes."""
        if self._journal is None or not self._journal.path.exists():
            return
        self._journal.repair()
        self.begun = size
        with self._journal.path.open("rb") as file, self._lock:
            file.seek(size)
            self._known.clear()
            for line in file:
                row = json.loads(line)
                self._known[row["key"]].append(Reply(**row["reply"]))
