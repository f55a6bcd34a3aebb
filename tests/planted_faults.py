"""Plants faults in a copy of the tree, one at a time, and shows that the tests find each.

    python -m tests.planted_faults [--only NAME ...] [--checkout FOLDER]

`planted_faults.yaml` has the faults. A text that does not stand exactly once in its file is an error: the
code has moved on, and the fault must, too.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[1]
TABLE = Path(__file__).with_suffix(".yaml")
TESTS_FAILED = 1  # pytest's exit code where tests ran, and some failed
FAILED = re.compile(r"^FAILED (?:\S*/)?(\S+)", re.MULTILINE)


@dataclass(frozen=True)
class Fault:
    """A text that is replaced in a file, and the tests that must notice."""

    name: str
    file: str
    old: str
    new: str
    tests: str  # arguments of pytest

    def fits(self, tree: Path) -> bool:
        """Whether the text stands in the file exactly once, and the tests exist."""
        path = tree / self.file
        files = [tree / argument.partition("::")[0] for argument in self.tests.split()]
        return path.is_file() and path.read_text().count(self.old) == 1 and all(map(Path.exists, files))


def read_faults(only: Sequence[str] = ()) -> list[Fault]:
    """Returns all faults, or the faults of some names. Raises KeyError for an unknown name."""
    nodes: dict[str, dict[str, Any]] = yaml.safe_load(TABLE.read_text())
    return [Fault(name, **nodes[name]) for name in only or nodes]


def copy_of(checkout: Path, place: Path) -> Path:
    """Copies what git has or would add of a checkout to a folder."""
    command = ["git", "-C", str(checkout), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    for name in subprocess.run(command, capture_output=True, text=True, check=True).stdout.split("\0"):
        if (checkout / name).is_file():
            (place / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(checkout / name, place / name)
    return place


def run_tests(tree: Path, arguments: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """Runs tests on the package of a tree."""
    command = [sys.executable, "-m", "pytest", "-q", "--tb=short", "-p", "no:cacheprovider", *arguments]
    environment = os.environ | {"PYTHONPATH": f"{tree / 'src'}{os.pathsep}{tree}"}
    return subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True)


def verdicts(tree: Path, faults: Sequence[Fault]) -> Iterator[tuple[Fault, float, str]]:
    """Yields each fault with the seconds that its tests took, and the first test that failed; "" where none
    did.

    Raises:
        RuntimeError: pytest itself failed.
    """
    for number, fault in enumerate(faults, 1):
        path, start = tree / fault.file, time.monotonic()
        right, changed = path.read_text(), path.stat().st_mtime
        path.write_text(right.replace(fault.old, fault.new))
        os.utime(path, (number, number))  # compiled files of another text are not taken for this one's
        done = run_tests(tree, ["-x", *fault.tests.split()])
        path.write_text(right)
        os.utime(path, (changed, changed))
        if done.returncode not in (0, TESTS_FAILED):
            raise RuntimeError(f"{fault.name}: pytest ended with {done.returncode}\n{done.stdout[-3000:]}")
        found = FAILED.search(done.stdout)
        yield fault, time.monotonic() - start, found[1] if done.returncode and found else ""


def main() -> int:
    """Prints a line for each fault; returns 1 if one survives or cannot be planted."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="these faults alone")
    parser.add_argument("--checkout", type=Path, default=ROOT, help="tree to plant them in")
    arguments = parser.parse_args()
    named = read_faults(arguments.only)
    with tempfile.TemporaryDirectory() as folder:
        tree = copy_of(arguments.checkout, Path(folder))
        faults = [fault for fault in named if fault.fits(tree)]
        lost = [fault.name for fault in named if fault not in faults]
        for name in lost:
            print(f"{name}: its text does not stand exactly once in its file, or its tests are gone")
        clean = run_tests(tree, sorted({test for fault in faults for test in fault.tests.split()}))
        if clean.returncode:
            print(clean.stdout[-6000:], "tests fail without any fault", sep="\n")
            return 1
        survivors = 0
        for fault, seconds, failed in verdicts(tree, faults):
            survivors += not failed
            print(f"{fault.name:<40} {seconds:5.0f} s  {failed or 'SURVIVED'}", flush=True)
    print(f"{len(faults) - survivors} of {len(named)} planted faults fail a test")
    return int(bool(survivors or lost))


if __name__ == "__main__":
    sys.exit(main())
