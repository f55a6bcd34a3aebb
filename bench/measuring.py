"""Shared parts of all benchmarks: a clock for wall and CPU time, works that take turns, medians with their
spread, and the record.

A drift of the machine's speed affects works that take turns alike, so the median of the ratios of
neighbouring turns is more reliable than the ratio of two medians. Where other processes share the cores, wall
time includes their work; CPU time, of all threads of this process, does not.

Standard library only, because the script in TRL's environment needs it as well.
"""

from __future__ import annotations

import json
import resource
import statistics
import subprocess
import sys
import time
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bapo_lightning.runs.command import number_type
from bapo_lightning.system.values import Count, CountOrZero, Seed, Workers

KINDS = {"seed": Seed, "warm_up": CountOrZero, "threads": Workers}  # of numbers that are no counts


@dataclass(frozen=True)
class Turn:
    wall: float  # seconds
    cpu: float  # seconds of all threads of this process


def turn(work: Callable[[], object]) -> Turn:
    wall, cpu = time.perf_counter(), time.process_time()
    work()
    return Turn(time.perf_counter() - wall, time.process_time() - cpu)


def in_turns(
    works: Mapping[str, Callable[[], object]], repeats: int, warm_up: int = 1
) -> dict[str, list[Turn]]:
    """Calls each work `warm_up` times without counting, then `repeats` times: first, second, ..., then in
    reverse order, and so on.
    """
    taken: dict[str, list[Turn]] = {name: [] for name in works}
    for turn_number in range(warm_up + repeats):
        for name in alternating(works, turn_number):
            taken[name].append(turn(works[name]))
    return {name: turns[warm_up:] for name, turns in taken.items()}


def alternating(names: Iterable[str], number: int) -> list[str]:
    """Returns the order of turn `number`: first, second, ..., and in reverse every other time."""
    return list(names)[:: 1 if number % 2 == 0 else -1]


def method(repeats: int, warm_up: int, threads: int) -> str:
    return (
        f"method: {threads} threads, in turns, {warm_up} warm-up and {repeats} counted of each; median "
        "(least .. most)"
    )


def with_peak(work: Callable[[], object]) -> tuple[Turn, int]:
    """Returns the time of one call, and the peak of this process's memory above its level before, in bytes.
    In one process only the largest call shows its own peak.
    """
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    taken = turn(work)
    return taken, 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - pages * resource.getpagesize()


def apart(script: str, arguments: Sequence[str]) -> dict[str, Any]:
    """Runs a script in its own process, so that no measurement inherits memory; returns the JSON object that
    it prints last.
    """
    done = subprocess.run([sys.executable, script, *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(
            f"{' '.join(arguments)}: the process ended with {done.returncode} (-9: out of memory)\n"
            f"{done.stderr[-2000:]}"
        )
    return json.loads(done.stdout.splitlines()[-1])


@dataclass(frozen=True)
class Spread:
    median: float
    least: float
    most: float
    count: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        return cls(statistics.median(values), min(values), max(values), len(values))

    def text(self, unit: str = "", scale: float = 1.0, digits: int = 2) -> str:
        """Returns `median unit (least .. most)`."""
        middle, low, high = (f"{scale * value:.{digits}f}" for value in (self.median, self.least, self.most))
        return f"{middle}{unit and ' '}{unit} ({low} .. {high})"


def ratio(reference: Sequence[float], ours: Sequence[float]) -> Spread:
    """Spread of the ratios reference / ours over neighbouring turns."""
    return Spread.of([theirs / one for theirs, one in zip(reference, ours, strict=True)])


def bench_parser(doc: str | None, has_json: bool = True, **numbers: int) -> ArgumentParser:
    """Options of a benchmark: whole numbers by name, and `--json` unless it has none."""
    parser = ArgumentParser(description=doc, formatter_class=RawDescriptionHelpFormatter)
    for name, value in numbers.items():
        kind = number_type(KINDS.get(name, Count))
        option = f"--{name.replace('_', '-')}"
        parser.add_argument(option, type=kind, default=value, help="default: %(default)s")
    if has_json:
        parser.add_argument("--json", type=Path, help="also write the numbers to this file")
    return parser


def plain(value: Any) -> Any:
    """Converts a value that JSON does not know: a dataclass to a mapping, a path to text."""
    return str(value) if isinstance(value, Path) else vars(value)


def write_json(path: Path | None, record: Mapping[str, Any]) -> None:
    """Writes the measurements in one step, unless `path` is None. Spreads and turns become mappings."""
    if path is None:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    part.write_text(json.dumps(record, indent=1, default=plain) + "\n")
    part.replace(path)
