"""Builds sources and wheel of a release in dist/, if tag, package, citation and changelog agree:

python scripts/release.py v0.2.0
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from steps import stop

ROOT = Path(__file__).resolve().parent.parent


def main() -> None:
    if len(sys.argv) != 2 or not re.fullmatch(r"v\d+\.\d+\.\d+", sys.argv[1]):
        stop("give the tag of the release, such as v0.2.0")
    version = sys.argv[1].removeprefix("v")
    if problems := disagreements(version, ROOT):
        stop("; ".join(problems))
    # The wheel is built from the sources as they are published.
    sources = f"dist/bapo_lightning-{version}.tar.gz"
    sdist = [sys.executable, "-c", "from setuptools import build_meta; build_meta.build_sdist('dist')"]
    wheel = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "-w", "dist", sources]
    if any(subprocess.run(command, cwd=ROOT).returncode for command in (sdist, wheel)):
        stop("the sources or the wheel could not be built")


def disagreements(version: str, root: Path) -> list[str]:
    """What names another version than `version` in the tree at `root`."""
    wanted = {
        "src/bapo_lightning/__init__.py": f'__version__ = "{version}"',
        "CITATION.cff": f"version: {version}",
        "CHANGELOG.md": f"## [{version}] - ",
    }
    return [
        f"{file} has no line with {line!r}"
        for file, line in wanted.items()
        if not re.search(f"^{re.escape(line)}", (root / file).read_text(), re.MULTILINE)
    ]


if __name__ == "__main__":
    main()
