"""All benchmarks of one machine in one run: one table after another, and one JSON file.

    python bench/everything.py [--only trl search] [--threads 2] [--json outputs/bench.json]

Each part is a script of its own with options for small sizes; run it alone for larger ones.
docs/benchmarks.md says how long all take. A part that cannot run (TRL or SmolLM2 is not there) says what to
do; a part that fails does not stop the others, and is listed at the end.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from measuring import write_json

BENCH = Path(__file__).resolve().parent
ROOT = BENCH.parent
SMOLLM2 = "models/smollm2-135m-instruct"


@dataclass(frozen=True)
class Part:
    """One script with its options."""

    title: str
    command: tuple[str, ...]
    needs: tuple[tuple[str, str], ...] = ()  # paths, each with what makes it

    def missing(self) -> list[str]:
        """What to run first."""
        return [remedy for path, remedy in self.needs if not (ROOT / path).exists()]


TRL = (".venv-trl/bin/python", "make setup-trl")
MODEL = (SMOLLM2, "make model-smollm2")


def parts(threads: int) -> dict[str, Part]:
    """In the order of the issue: what is compared with others first."""
    engines = ("hf", "vllm") if find_spec("vllm") else ("hf",)
    count = ("--threads", str(threads))
    return {
        "trl": Part(
            "TRL's GRPOTrainer against this package, tiny model",
            ("against_trl.py", "tiny", "--cycles", "5", *count),
            (TRL,),
        ),
        "trl-smollm2": Part(
            "TRL's GRPOTrainer against this package, SmolLM2-135M",
            ("against_trl.py", "smollm2", "--cycles", "2", "--engines", *engines, *count),
            (TRL, MODEL),
        ),
        "search": Part(
            "Bound search against a plain while-loop",
            ("bound_search.py", "--tokens", "200000", "--repeats", "7", *count),
        ),
        "overhead": Part("BAPO's search inside an update", ("bapo_overhead.py", "--rounds", "20", *count)),
        "scores": Part(
            "Fused token scores against naive ones, at SmolLM2's width and vocabulary",
            (
                "token_scores.py",
                "--tokens",
                "1024",
                "--width",
                "576",
                "--vocabulary",
                "49152",
                "--rounds",
                "3",
                *count,
            ),
        ),
        "verifier": Part(
            "Verdicts on mathematical answers",
            ("verifier.py", "--rounds", "3", "--integers", "1000", "--expressions", "160"),
        ),
        "async": Part(
            "Asynchronous against synchronous training",
            ("async_overlap.py", "tiny", "--repeats", "3", "--batches", "8", "--quiet-seconds", "2"),
        ),
        "scaling": Part("Time of an update over its size", ("scaling.py", "--repeats", "5", *count)),
    }


def run(part: Part, folder: Path, number: int) -> tuple[str, Any]:
    """Run one part; its output goes to the console as it comes. Returns how it ended, and its numbers."""
    if missing := part.missing():
        print(f"not run; first: {', '.join(missing)}", flush=True)
        return "not run", None
    path = folder / f"{number}.json"
    command = [sys.executable, str(BENCH / part.command[0]), *part.command[1:], "--json", str(path)]
    environment = os.environ | {"OMP_WAIT_POLICY": "PASSIVE"}
    done = subprocess.run(command, cwd=ROOT, env=environment)
    numbers = json.loads(path.read_text()) if path.exists() else None
    return ("done" if done.returncode == 0 else f"failed with {done.returncode}"), numbers


def main() -> None:
    """Run all, or those named."""
    known = parts(1)
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", choices=list(known), default=list(known), help="these parts")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--json", type=Path, default=ROOT / "outputs" / "bench.json", help="gets all numbers")
    arguments = parser.parse_args()
    chosen = {name: part for name, part in parts(arguments.threads).items() if name in arguments.only}
    print(f"{platform.platform()}, {os.cpu_count()} cores, Python {platform.python_version()}", flush=True)
    record: dict[str, Any] = {
        "platform": platform.platform(),
        "cores": os.cpu_count(),
        "threads": arguments.threads,
        "parts": {},
    }
    begun = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        for number, (name, part) in enumerate(chosen.items()):
            print(f"\n== {part.title} ==", flush=True)
            start = time.monotonic()
            ended, numbers = run(part, Path(folder), number)
            seconds = time.monotonic() - start
            print(f"-- {name}: {ended} in {seconds:.0f} s", flush=True)
            record["parts"][name] = {
                "command": part.command,
                "ended": ended,
                "seconds": seconds,
                "numbers": numbers,
            }
            write_json(arguments.json, record)
    failed = [name for name, part in record["parts"].items() if part["ended"].startswith("failed")]
    print(f"\n{len(chosen)} parts in {time.monotonic() - begun:.0f} s; numbers in {arguments.json}")
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
