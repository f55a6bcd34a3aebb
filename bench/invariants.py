"""Runs the test of every invariant that docs/promises.md lists, and prints which hold.

python bench/invariants.py
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "promises.md"
ROW = re.compile(r"\| (.+?) \| `(tests/[^`]+)` \| (.*?) ?\|")


def invariants() -> list[tuple[str, str, str]]:
    """Returns (invariant, test, what it would have caught) of each row of the page."""
    return ROW.findall(PAGE.read_text(encoding="utf-8"))


def main() -> int:
    rows = invariants()
    results = {}
    for test in dict.fromkeys(test for _, test, _ in rows):
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", test]
        results[test] = subprocess.run(command, cwd=ROOT, capture_output=True, check=False).returncode == 0
    for invariant, test, caught in rows:
        print(f"{'holds ' if results[test] else 'BROKEN'}  {invariant}")
        print(f"        {test}" + (f"\n        would have caught {caught}" if caught else ""))
    return 0 if all(results.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
