"""What all benchmarks share: a clock for wall and CPU time, kinds of work that take turns, medians with their
spread, and the record.

A drift of the machine's speed meets kinds that take turns alike, so that the median of the ratios of
neighbouring turns says more than the ratio of two medians. Where other processes share the cores, the wall
clock counts their work too; CPU seconds, of all threads of the process, do not.

Standard library only: the script in TRL's environment needs it, too.
"""

from __future__ import annotations

import json
import resource
import statistics
import subprocess
import sys
import time
from argparse import ArgumentParser
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Turn:
    """What one run of something took."""

    wall: float  # seconds
    cpu: float  # seconds of all threads of this process


def turn(work: Callable[[], object]) -> Turn:
    """Time one call."""
    wall, cpu = time.perf_counter(), time.process_time()
    work()
    return Turn(time.perf_counter() - wall, time.process_time() - cpu)


def in_turns(
    kinds: Mapping[str, Callable[[], object]], repeats: int, warm_up: int = 1
) -> dict[str, list[Turn]]:
    """Call each kind `warm_up` times without counting, then `repeats` times: first, second, ..., then in the
    opposite order, and so on.
    """
    taken: dict[str, list[Turn]] = {name: [] for name in kinds}
    for number in range(warm_up + repeats):
        for name in list(kinds)[:: 1 if number % 2 == 0 else -1]:
            taken[name].append(turn(kinds[name]))
    return {name: turns[warm_up:] for name, turns in taken.items()}


def method(repeats: int, warm_up: int, threads: int) -> str:
    """The line that says how numbers came about."""
    return (
        f"method: {threads} threads, in turns, {warm_up} warm-up and {repeats} counted of each; median "
        "(least .. most)"
    )


def with_peak(work: Callable[[], object]) -> tuple[Turn, int]:
    """One call, and the bytes this process held at most above those it held before. Only the largest call of
    a process shows its own.
    """
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    taken = turn(work)
    return taken, 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - pages * resource.getpagesize()


def apart(script: str, arguments: Sequence[str]) -> dict[str, Any]:
    """Run a script in a process of its own, so that nobody inherits memory from another; returns the JSON
    object that it prints last.
    """
    done = subprocess.run([sys.executable, script, *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(
            f"{' '.join(arguments)}: the process ended with {done.returncode} (-9: out of "
            f"memory)\n{done.stderr[-2000:]}"
        )
    return json.loads(done.stdout.splitlines()[-1])


@dataclass(frozen=True)
class Spread:
    """Median, and the range around it."""

    median: float
    least: float
    most: float
    count: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Of at least one value."""
        return cls(statistics.median(values), min(values), max(values), len(values))

    def text(self, unit: str = "", scale: float = 1.0, digits: int = 2) -> str:
        """As `median unit (least .. most)`."""
        middle, low, high = (f"{scale * value:.{digits}f}" for value in (self.median, self.least, self.most))
        return f"{middle}{unit and ' '}{unit} ({low} .. {high})"


def ratio(reference: Sequence[float], ours: Sequence[float]) -> Spread:
    """How many times as much the reference took, over neighbouring turns."""
    return Spread.of([theirs / own for theirs, own in zip(reference, ours, strict=True)])


def add_json_option(parser: ArgumentParser) -> None:
    """The option every benchmark has."""
    parser.add_argument("--json", type=Path, help="write the numbers to this file, too")


def plain(value: Any) -> Any:
    """What JSON does not know: our dataclasses as mappings, paths as text."""
    return str(value) if isinstance(value, Path) else vars(value)


def write_json(path: Path | None, record: Mapping[str, Any]) -> None:
    """Write what was measured, whole or not at all; nothing without a path. Spreads and turns become
    mappings.
    """
    if path is None:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    part.write_text(json.dumps(record, indent=1, default=plain) + "\n")
    part.replace(path)
