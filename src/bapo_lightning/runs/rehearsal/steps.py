"""The acts of a rehearsal, each a command of the package in a process of its own, as a user gives it.

train -> SIGTERM after the first update -> resume -> export -> evaluate the export
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

import yaml

from bapo_lightning.run_folder.record import read_manifest, read_rows
from bapo_lightning.runs.rehearsal.parts import Part, parts_of_run
from bapo_lightning.runs.rehearsal.script import Script

STOPPED = 128 + signal.SIGTERM  # exit code of a run that was stopped
SIGTERM_AFTER_FIRST = (
    "+callbacks.sigterm_after_first={_target_: bapo_lightning.runs.rehearsal.sigterm.SigtermAfterFirst}"
)
# Groups of an evaluation whose files are the experiment's.
CHOSEN = ("data/prompt", "reward", "environment", "rollout")
TAIL_LINES = 12  # of a command's output, where it fails


class ActFailed(Exception):
    """A command did not end as it should have. Holds why, with the end of its output."""


class Process(Protocol):
    """Process of a command, as an act needs it; `subprocess.Popen` is one."""

    def poll(self) -> int | None:
        """The exit code, None while it runs."""
        ...

    def wait(self) -> int:
        """Waits for its end; returns the exit code."""
        ...

    def send_signal(self, sig: int) -> None:
        """Sends a signal, if it still runs."""
        ...


def start_process(module: str, arguments: Sequence[str], log: Path) -> Process:
    """Starts `python -m MODULE ARGUMENTS`, whose output goes to `log`."""
    with log.open("wb") as output:
        return subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, "COLUMNS": "120"},
        )


@dataclass
class Rehearsal:
    """The acts of one rehearsal, in a folder of its own, and what came of them."""

    script: Script
    folder: Path
    start: Callable[[str, Sequence[str], Path], Process] = start_process
    parts: list[Part] = field(default_factory=list)

    @property
    def run_folder(self) -> Path:
        """Folder of the run that is rehearsed."""
        return self.folder / "run"

    def perform(self, num_acts: int | None = None) -> bool:
        """Performs the first acts, or all; returns whether every part ran. An act that fails is the last."""
        acts: list[tuple[str, Callable[[], str]]] = [
            ("train and stop", self.train_and_stop),
            ("resume", self.resume),
            ("export", self.export),
            ("evaluate the export", self.evaluate),
        ]
        all(self._act(name, act) for name, act in acts[:num_acts])
        self.parts += parts_of_run(self.script, self.run_folder)
        return all(part.ran for part in self.parts)

    def train_and_stop(self) -> str:
        """Trains until a SIGTERM ends the run after its first update."""
        with self._started("train", [*self._training(), SIGTERM_AFTER_FIRST]) as process:
            self._ended("train", process, STOPPED)
        return f"SIGTERM, saved after update {len(read_rows(self.run_folder))}"

    def resume(self) -> str:
        """Goes on to the end of the run."""
        before = len(read_rows(self.run_folder))
        with self._started("resume", [*self._training(), "resume=auto"]) as process:
            self._ended("resume", process, 0)
        steps = [row["step"] for row in read_rows(self.run_folder)]
        if read_manifest(self.run_folder).get("status") != "finished" or len(steps) <= before:
            raise ActFailed(f"the run did not go on from update {before} to its end")
        return f"updates {before + 1} to {len(steps)}"

    def export(self) -> str:
        """Writes the trained policy as a model folder."""
        arguments = [str(self.run_folder), str(self.folder / "export"), "--overwrite"]
        with self._started("export", ["export", *arguments]) as process:
            self._ended("export", process, 0)
        return f"{sum(file.stat().st_size for file in (self.folder / 'export').glob('*.safetensors'))} bytes"

    def evaluate(self) -> str:
        """Answers the validation problems with the exported model, by the experiment's engine."""
        nodes, scale = self.script.plain, self.script.plain["scale"]
        kept = {
            "data": {"prompt": nodes["data"]["prompt"], "validation": nodes["data"]["validation"]},
            "reward": nodes["reward"],
            "environment": nodes["environment"],
            "scale": {key: scale[key] for key in ("max_new_tokens", "max_feedback_tokens")},
        }
        added = self.folder / "conf" / "rehearsed"
        added.mkdir(parents=True, exist_ok=True)
        (added / "evaluation.yaml").write_text(
            f"# @package _global_\n{yaml.safe_dump(kept)}", encoding="utf-8"
        )
        arguments = [
            f"checkpoint={self.folder / 'export'}",
            *(f"{group}={self.script.choices[group]}" for group in CHOSEN),
            *(f"k={scale['validation_samples']}", f"problems_per_set={scale['validation_problems']}"),
            f"run_folder={self.folder / 'evaluation'}",
            f"--config-dir={self.folder / 'conf'}",
            "+rehearsed=evaluation",
        ]
        with self._started("evaluate", ["evaluate", *arguments]) as process:
            self._ended("evaluate", process, 0)
        return ", ".join(nodes["data"]["validation"])

    def record(self) -> dict[str, Any]:
        """Content of rehearsal.json."""
        return {
            "experiment": self.script.name,
            "parts": [asdict(part) for part in self.parts],
            "sizes": list(self.script.sizes),
            "not_here": list(self.script.not_here),
        }

    def _act(self, name: str, act: Callable[[], str]) -> bool:
        start = time.monotonic()
        try:
            note, ran = act(), True
        except ActFailed as error:
            note, ran = str(error), False
        self.parts.append(Part(name, ran, time.monotonic() - start, note))
        return ran

    def _training(self) -> list[str]:
        return ["train", *self.script.overrides, f"run_folder={self.run_folder}"]

    @contextmanager
    def _started(self, name: str, command: Sequence[str]) -> Iterator[Process]:
        """Context of one command, whose output goes to a file; it does not outlive the context."""
        module, *arguments = command
        process = self.start(f"bapo_lightning.cli.{module}", arguments, self._log(name))
        try:
            yield process
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
                process.wait()

    def _ended(self, name: str, process: Process, expected: int) -> None:
        """Waits for the end of a command. Raises ActFailed for another exit code than is expected."""
        if (code := process.wait()) == expected:
            return
        lines = self._log(name).read_text(encoding="utf-8", errors="replace").splitlines()
        tail = "\n".join(lines[-TAIL_LINES:])
        raise ActFailed(f"exit code {code}, expected {expected}; its output: {self._log(name)}\n{tail}")

    def _log(self, name: str) -> Path:
        return self.folder / f"{name}.log"
