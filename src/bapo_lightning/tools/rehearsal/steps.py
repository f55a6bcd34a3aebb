"""The acts of a rehearsal, each a command of the package in a separate process, as a user gives it.

train -> SIGTERM after the first update -> resume -> export -> evaluate the export

The parts that ran are read from the files of the run.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from math import isfinite
from pathlib import Path
from typing import Any

import yaml

from bapo_lightning.system.orphans import started_by_this
from bapo_lightning.system.run_folder.checkpoint import list_checkpoints
from bapo_lightning.system.run_folder.record import Row, read_manifest, read_rows
from bapo_lightning.tools.rehearsal.script import Script

STOPPED = 128 + signal.SIGTERM  # exit code of a run that was stopped
SIGTERM_AFTER_FIRST = (
    "+callbacks.sigterm_after_first={_target_: bapo_lightning.tools.rehearsal.sigterm.SigtermAfterFirst}"
)
# Groups of an evaluation whose files are the experiment's.
CHOSEN = ("data/prompt", "reward", "environment", "rollout")
TAIL_LINES = 12  # of a command's output, if it fails


class ActFailed(Exception):
    """A command did not end as it should have. Holds why, with the end of its output."""


def start_process(module: str, arguments: Sequence[str], log: Path) -> subprocess.Popen[bytes]:
    """Starts `python -m MODULE ARGUMENTS`, whose output goes to `log`."""
    with log.open("wb") as output:
        return subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, **started_by_this(), "COLUMNS": "120"},
        )


@dataclass
class Rehearsal:
    """The acts of one rehearsal, in a separate folder, and their results."""

    script: Script
    folder: Path
    start: Callable[[str, Sequence[str], Path], Any] = start_process
    parts: list[RehearsedPart] = field(default_factory=list)

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
        self._run("train", "cli.train", [*self._training(), SIGTERM_AFTER_FIRST], STOPPED)
        return f"SIGTERM, saved after update {len(read_rows(self.run_folder))}"

    def resume(self) -> str:
        """Goes on to the end of the run."""
        before = len(read_rows(self.run_folder))
        self._run("resume", "cli.train", [*self._training(), "resume=auto"])
        steps = [row["step"] for row in read_rows(self.run_folder)]
        if read_manifest(self.run_folder).get("status") != "finished" or len(steps) <= before:
            raise ActFailed(f"the run did not continue from update {before} to its end")
        return f"updates {before + 1} to {len(steps)}"

    def export(self) -> str:
        """Writes the trained policy as a model folder."""
        arguments = ["--overwrite", "--", str(self.run_folder), str(self.folder / "export")]
        self._run("export", "tools.commands.export", arguments)
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
        content = f"# @package _global_\n{yaml.safe_dump(kept)}"
        (added / "evaluation.yaml").write_text(content, encoding="utf-8")
        arguments = [
            f"checkpoint={self.folder / 'export'}",
            *(f"{group}={self.script.choices[group]}" for group in CHOSEN),
            *(f"k={scale['validation_samples']}", f"problems_per_set={scale['validation_problems']}"),
            f"run_folder={self.folder / 'evaluation'}",
            f"--config-dir={self.folder / 'conf'}",
            "+rehearsed=evaluation",
        ]
        self._run("evaluate", "tools.commands.evaluate", arguments)
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
        self.parts.append(RehearsedPart(name, ran, time.monotonic() - start, note))
        return ran

    def _training(self) -> list[str]:
        return [*self.script.overrides, f"run_folder={self.run_folder}"]

    def _run(self, act: str, module: str, arguments: Sequence[str], expected: int = 0) -> None:
        log = self.folder / f"{act}.log"
        process = self.start(f"bapo_lightning.{module}", arguments, log)
        try:
            code = process.wait()
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
                process.wait()
        if code != expected:
            lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
            tail = "\n".join(lines[-TAIL_LINES:])
            raise ActFailed(f"exit code {code}, expected {expected}; its output: {log}\n{tail}")


WIDTHS = 22, 5, 9  # characters of the first columns of the table


@dataclass(frozen=True)
class RehearsedPart:
    """One line of a rehearsal's table."""

    part: str
    ran: bool
    seconds: float
    note: str = ""


def parts_of_run(script: Script, folder: Path) -> Iterator[RehearsedPart]:
    """Yields the parts of a run that has ended, with the seconds that they took in all."""
    rows = read_rows(folder)
    config, regime = script.plain, script.config.staleness
    wanted = config["scale"]["num_rollout_batches"] * regime.updates_per_rollout_batch
    samples, tokens = (int(rows[-1][f"progress/{name}"]) if rows else 0 for name in ("samples", "tokens"))
    rollout, sync, reward, update = (
        _sum(rows, f"time/{part}_seconds") for part in ("rollout", "sync", "reward", "update")
    )
    yield RehearsedPart("sampling", tokens > 0, rollout, f"{samples} responses, {tokens} tokens")
    differences = [row["sync/logp_diff_mean"] for row in rows if "sync/logp_diff_mean" in row]
    worst = f", {max(differences):.2g} nats apart at most" if differences else ""
    note = f"proven in {len(differences)} updates{worst}"
    yield RehearsedPart("weight sync", bool(differences), sync, note)
    mean = _sum(rows, "train/reward") / max(len(rows), 1)
    yield RehearsedPart("rewards", samples > 0, reward, f"mean {mean:.2f}")
    moved = [row for row in rows if row.get("train/grad_norm", 0.0) > 0 and isfinite(row["train/grad_norm"])]
    note = f"{len(rows)} of {wanted}, {len(moved)} with a gradient"
    yield RehearsedPart("updates", len(rows) == wanted and bool(moved), update, note)
    oldest = max((row.get("staleness/age_max", 0.0) for row in rows), default=0.0)
    note = f"age at most {oldest:g}, bound {regime.age_bound}"
    yield RehearsedPart("staleness", oldest <= regime.age_bound, 0.0, note)
    validated = sorted({name.split("/")[1] for row in rows for name in row if name.startswith("val/")})
    expected = sorted(config["data"]["validation"]) if config["callbacks"]["validation"]["every"] else []
    yield RehearsedPart("validation", validated == expected, 0.0, ", ".join(validated))
    saved = list_checkpoints(folder / "checkpoints")
    yield RehearsedPart("checkpoints", bool(saved), 0.0, ", ".join(path.name for path in reversed(saved)))


def table(parts: Sequence[RehearsedPart]) -> str:
    """Formats parts for the console: part, ran, seconds, and what is to be said."""
    first, second, third = WIDTHS
    lines = [f"{'part':<{first}}{'ran':<{second}}{'seconds':>{third}}"]
    for part in parts:
        seconds = f"{part.seconds:.1f}" if part.seconds else ""
        line = f"{part.part:<{first}}{'yes' if part.ran else 'NO':<{second}}{seconds:>{third}}  {part.note}"
        lines.append(line.rstrip())
    return "\n".join(lines)


def _sum(rows: Sequence[Row], name: str) -> float:
    return sum(row.get(name, 0.0) for row in rows)
