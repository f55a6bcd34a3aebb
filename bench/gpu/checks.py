"""What a check is, what it finds, and the machine that it runs on.

A check is a function of the machine that yields findings. Each runs in a process of its own (`gpu_check.py`),
so that no memory is inherited and a broken CUDA context breaks no other check. On a machine without a GPU,
and in the tests, the same functions run at sizes for a CPU.
"""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

FILES = Path("outputs", "gpu-check-files")  # of checks, on the disk that runs write to
Verdict = Literal["ok", "FAILED", "measured", "skipped"]


@dataclass(frozen=True)
class Machine:
    """Where a check runs."""

    device: str  # cuda or cpu

    @property
    def on_gpu(self) -> bool:
        """Whether there is a GPU; otherwise sizes are those of a CPU, and speed is not judged."""
        return self.device == "cuda"

    def size(self, on_gpu: Any, on_cpu: Any) -> Any:
        """Returns the size for this machine."""
        return on_gpu if self.on_gpu else on_cpu

    def wait(self) -> None:
        """Waits until the device has done all that it was given."""
        if self.on_gpu:
            torch.cuda.synchronize()

    def seconds(self, work: Callable[[], object], repeats: int = 3) -> float:
        """Returns the least time of a call, after one that warms up."""
        work()
        self.wait()
        taken = []
        for _ in range(repeats):
            start = time.perf_counter()
            work()
            self.wait()
            taken.append(time.perf_counter() - start)
        return min(taken)

    def free_bytes(self) -> int:
        """Returns the memory that nobody holds; only a GPU's is counted."""
        if not self.on_gpu:
            return 0
        torch.cuda.empty_cache()
        return torch.cuda.mem_get_info()[0]

    def peak_bytes(self, work: Callable[[], object]) -> int:
        """Returns the most memory that a call adds; only a GPU's allocator counts."""
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        work()
        self.wait()
        return torch.cuda.max_memory_allocated() - before


def empty_folder() -> tempfile.TemporaryDirectory[str]:
    """Returns a context with an empty folder, which may hold models and checkpoints."""
    FILES.mkdir(parents=True, exist_ok=True)
    return tempfile.TemporaryDirectory(dir=FILES.resolve())


@dataclass(frozen=True)
class Finding:
    """One number, what it has to be, and whether it is."""

    check: str
    value: float | None
    unit: str = ""
    limit: float | None = None
    verdict: Verdict = "measured"
    note: str = ""

    @property
    def is_bad(self) -> bool:
        """Whether the machine fails."""
        return self.verdict == "FAILED"


def at_most(check: str, value: float, limit: float, unit: str = "", note: str = "") -> Finding:
    """Returns a finding that is ok up to a limit; NaN never is."""
    return Finding(check, value, unit, limit, "ok" if value <= limit else "FAILED", note)


def at_least(check: str, value: float, limit: float, unit: str = "", note: str = "") -> Finding:
    """Returns a finding that is ok from a limit on; NaN never is."""
    return Finding(check, value, unit, limit, "ok" if value >= limit else "FAILED", note)


def holds(check: str, is_so: bool, note: str = "") -> Finding:
    """Returns a finding that is a yes or a no."""
    return Finding(check, float(is_so), "", 1.0, "ok" if is_so else "FAILED", note)


def measured(check: str, value: float, unit: str = "", note: str = "") -> Finding:
    """Returns a number without a limit."""
    return Finding(check, value if math.isfinite(value) else None, unit, None, "measured", note)


def skipped(check: str, note: str) -> Finding:
    """Returns what was not looked at, with the reason."""
    return Finding(check, None, verdict="skipped", note=note)


@dataclass(frozen=True)
class Check:
    """A function of the machine and what it needs."""

    run: Callable[[Machine], Iterator[Finding]]
    packages: tuple[str, ...] = ()
    gpus: int = 0  # without so many it is skipped
    title: str = ""  # empty: the function's name
    on_cpu: bool = False  # ranks and engines of a CPU do where it has no GPU
    seconds: float = 600.0  # after which it has failed

    @property
    def name(self) -> str:
        """What it goes by in the record."""
        return self.title or self.run.__name__
