"""Takes mends of faults that ended runs back, one by one: a rehearsal and the matrix find each.

    python -m tests.matrix.blockers

A copy of the package gets the fault again. Both commands ran whole without it: docs/results/rehearsals.md and
docs/results/matrix.md.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

COPIED = ("src", "conf", "tests", "pyproject.toml")
POLICY = "src/bapo_lightning/modules/policy/lora.py"


@dataclass(frozen=True)
class Blocker:
    """A fault, and what finds it."""

    name: str
    file: str
    mended: str
    faulty: str
    rehearsal: tuple[str, ...]  # an experiment and overrides
    row: int  # of the matrix


BLOCKERS = (
    Blocker(
        "a shard of FSDP detached in vLLM's inference mode",
        POLICY,
        "full_tensor(parameter).detach()",
        "full_tensor(parameter.detach())",
        ("experiment=bapo_7b",),
        44,
    ),
    Blocker(
        "the same of an adapter's factors",
        POLICY,
        "full_tensor(factors[ADAPTER].weight).detach()",
        "full_tensor(factors[ADAPTER].weight.detach())",
        ("experiment=bapo_7b", "model/lora=default"),
        20,
    ),
    Blocker(
        "offloaded shards in pinned memory where there is no GPU",
        "src/bapo_lightning/modules/fsdp.py",
        'CPUOffloadPolicy(pin_memory=mesh.device_type == "cuda")',
        "CPUOffloadPolicy()",
        ("experiment=bapo_7b", "strategy.cpu_offload=true"),
        39,
    ),
)


def main() -> int:
    """Prints what each command says; returns 1 unless all of them find the fault."""
    missed = 0
    for blocker in BLOCKERS:
        print(blocker.name, flush=True)
        with tempfile.TemporaryDirectory() as folder:
            plant(blocker, Path(folder))
            missed += not found(
                folder,
                "bapo_lightning.tools.commands.rehearse",
                *blocker.rehearsal,
                "rehearsal.folder=rehearsal",
            )
            missed += not found(folder, "pytest", f"tests/matrix/test_rows.py::{row_test(blocker.row)}", "-q")
    return 1 if missed else 0


def plant(blocker: Blocker, folder: Path) -> None:
    """Copies this checkout and gives the copy its fault again."""
    for name in COPIED:
        source = Path(name)
        if source.is_dir():
            shutil.copytree(source, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, folder)
    text = (folder / blocker.file).read_text(encoding="utf-8")
    assert text.count(blocker.mended) == 1, blocker
    (folder / blocker.file).write_text(text.replace(blocker.mended, blocker.faulty), encoding="utf-8")


def row_test(number: int) -> str:
    """Name of the test of a row."""
    return f"test_a_row_runs_stops_and_resumes[{number}]"


def found(folder: str, module: str, *arguments: str) -> bool:
    """Runs a command on the copy; returns whether it failed, and prints its part that did."""
    start = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", module, *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(Path(folder, "src"))},
        capture_output=True,
        text=True,
        check=False,
    )
    has_failed = done.returncode not in (0, 1) if module.endswith("rehearse") else done.returncode == 1
    said = [line.strip("E ") for line in done.stdout.splitlines() if " NO " in line or "Error" in line]
    verdict, seconds = "found " if has_failed else "MISSED", time.monotonic() - start
    print(f"  {verdict} in {seconds:3.0f} s: {' '.join((module, *arguments))}")
    print("\n".join(f"    {line[:150]}" for line in dict.fromkeys(said[:4])), flush=True)
    return has_failed


if __name__ == "__main__":
    sys.exit(main())
