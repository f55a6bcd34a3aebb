"""Benchmarks of one machine, by name: one table after another, and one JSON file with all numbers.

    make bench                                                  the comparisons, at small sizes
    make bench ARGS="--only trl search --threads 1"             some of them
    make bench ARGS="--only token-scores --full"                at the script's own sizes
    make bench ARGS="--only token-scores -- --tokens 8192"      likewise, with options of the script

docs/results/benchmarks.md says how long they take. A part whose needs are missing (TRL, vLLM, SmolLM2) names
the command that gets them; a part that fails does not stop the others. Both are listed at the end.
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
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from measuring import write_json

from bapo_lightning.runs.command import number_type
from bapo_lightning.system.values import Workers

BENCH = Path(__file__).resolve().parent
ROOT = BENCH.parent
TRL, MODEL, VLLM, RAY = "TRL", "SmolLM2", "vLLM", "Ray"
# How each need is met, and the path that is there when it is; vLLM and Ray are looked for as modules.
REMEDIES = {
    TRL: "make setup-trl",
    MODEL: "make model-smollm2",
    VLLM: "make setup-vllm",
    RAY: '.venv/bin/python -m pip install -e ".[ray]"',
}
PATHS = {TRL: ".venv-trl/bin/python", MODEL: "models/smollm2-135m-instruct"}


@dataclass(frozen=True)
class Part:
    title: str
    command: str  # script and the options that make it this part
    small: str = ""  # options of a small size
    needs: tuple[str, ...] = ()
    in_all: bool = False  # whether it runs when no part is named
    has_threads: bool = False  # whether the script takes --threads
    has_json: bool = True  # whether the script takes --json

    @property
    def script(self) -> str:
        return self.command.split()[0]

    def missing(self) -> list[str]:
        return [REMEDIES[need] for need in self.needs if not is_there(need)]

    def options(self, full: bool, threads: int | None) -> list[str]:
        """Options of the script; `threads` None leaves them to it."""
        sizes = [] if full else self.small.split()
        cores = ["--threads", str(threads)] if self.has_threads and threads is not None else []
        return [*self.command.split()[1:], *sizes, *cores]


def is_there(need: str) -> bool:
    return (ROOT / PATHS[need]).exists() if need in PATHS else find_spec(need.lower()) is not None


ENGINES = "hf vllm" if is_there(VLLM) else "hf"
# All parts by name: comparisons with others first, then those that run only when they are named.
PARTS = {
    "trl": Part(
        "TRL's GRPOTrainer against this package, tiny model", "against_trl.py tiny", small="--cycles 5",
        needs=(TRL,), in_all=True, has_threads=True,
    ),
    "trl-smollm2": Part(
        "TRL's GRPOTrainer against this package, SmolLM2-135M",
        f"against_trl.py smollm2 --engines {ENGINES}", small="--cycles 2", needs=(TRL, MODEL), in_all=True,
        has_threads=True,
    ),
    "search": Part(
        "Bound search against a plain while-loop", "bound_search.py", small="--tokens 200000 --repeats 7",
        in_all=True, has_threads=True,
    ),
    "overhead": Part(
        "BAPO's search inside an update", "bapo_overhead.py",
        small="--rounds 20 --staleness 4 --parts 4 --checkpointing false", in_all=True,
        has_threads=True,
    ),
    "token-scores": Part(
        "Fused token scores against naive ones; small: at SmolLM2's width and vocabulary",
        "token_scores.py", small="--tokens 1024 --width 576 --vocabulary 49152 --rounds 3", in_all=True,
        has_threads=True,
    ),
    "precision": Part(
        "Updates and sampling in float32 and mixed precision, compiled or not, on SmolLM2-135M",
        "precision.py smollm2", needs=(MODEL,), has_threads=True,
    ),
    "verifier": Part(
        "Verdicts on mathematical answers beside math-verify", "verifier.py",
        small="--rounds 3 --integers 1000 --expressions 160", in_all=True,
    ),
    "conversations": Part(
        "Conversations without a model, beside responses of one turn", "conversations.py",
        small="--rounds 8", has_json=False,
    ),
    "async": Part(
        "Asynchronous against synchronous training", "async_overlap.py tiny",
        small="--repeats 3 --batches 8 --quiet-seconds 2", in_all=True,
    ),
    "partial": Part("Partial against whole rollouts", "partial_rollouts.py", has_json=False),
    "packing": Part(
        "An update over uneven lengths: padded, packed, with checkpointing", "packing.py", has_threads=True,
    ),
    "ray": Part(
        "A fleet of Ray actors against one engine in a child process", "ray_fleet.py",
        small="--requests 512 --repeats 5", needs=(RAY,),
    ),
    "plan": Part("Memory that a plan foretells against measured memory", "plan.py", has_json=False),
    "simulation": Part(
        "Runs in virtual time beside real ones: ages, idle shares, update times", "simulation.py",
    ),
    "start": Part(
        "Start of a run on tables of 10,000 to 1,000,000 rows", "start.py", small="--rows 10000",
        needs=(MODEL,),
    ),
    "threads": Part(
        "Update, rollout batch and sync by their operations, with 1 and 2 threads", "threads.py smollm2",
        small="--rounds 3", needs=(MODEL,),
    ),
    "ranks": Part("1, 2 and 4 CPU ranks, DDP and FSDP, against one process", "ranks.py", has_json=False),
    "rank0": Part(
        "What rank 0 does for all ranks, by the number of tokens", "rank0.py",
        small="--tokens 100000 --ranks 1 2",
    ),
    "vllm": Part(
        "vLLM against transformers, and weight syncs, on SmolLM2-135M", "rollout_engines.py",
        needs=(VLLM, MODEL), has_json=False,
    ),
    "adapters": Part(
        "What of a small update of adapters reaches vLLM, on SmolLM2-135M", "adapters.py",
        needs=(VLLM, MODEL), has_json=False,
    ),
    "head": Part(
        "Log-probs of vLLM in bfloat16 with logits in bfloat16 and in float32, on SmolLM2-135M",
        "head_dtype.py", needs=(VLLM, MODEL), has_json=False,
    ),
    "async-vllm": Part(
        "Asynchronous training with vLLM, on SmolLM2-135M", "async_overlap.py vllm", needs=(VLLM, MODEL),
    ),
    "reward": Part("Reward over the wall clock, in passes and in a stream", "reward_over_time.py"),
}  # fmt: skip


def run(part: Part, options: Sequence[str], path: Path) -> tuple[str, Any]:
    """Runs one part; its output goes to the console as it comes. Returns how it ended, and its numbers."""
    if missing := part.missing():
        print(f"not run; first: {', '.join(missing)}", flush=True)
        return "not run", None
    command = [sys.executable, str(BENCH / part.script), *options]
    command += ["--json", str(path)] if part.has_json else []
    done = subprocess.run(command, cwd=ROOT, env=os.environ | {"OMP_WAIT_POLICY": "PASSIVE"})
    numbers = json.loads(path.read_text()) if path.exists() else None
    return ("done" if done.returncode == 0 else f"failed with {done.returncode}"), numbers


def parsed(known: dict[str, Part]) -> tuple[argparse.Namespace, list[str]]:
    options, given = sys.argv[1:], []
    if "--" in options:
        options, given = options[: options.index("--")], options[options.index("--") + 1 :]
    listed = [
        f"  {name:<14}{'' if part.in_all else '(when named) '}{part.title}" for name, part in PARTS.items()
    ]
    parser = argparse.ArgumentParser(
        description=__doc__,
        epilog="\n".join(["parts:", *listed]),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--only", nargs="+", choices=list(known), metavar="PART", help="these parts")
    parser.add_argument("--full", action="store_true", help="sizes of the scripts instead of small ones")
    parser.add_argument(
        "--threads",
        type=number_type(Workers),
        help="default: all cores at small sizes, else the script's own",
    )
    parser.add_argument("--json", type=Path, default=ROOT / "outputs" / "bench.json", help="gets all numbers")
    arguments = parser.parse_args(options)
    if given and len(arguments.only or ()) != 1:
        parser.error(f"{' '.join(given)} are options of one script: name its part, --only PART -- OPTIONS")
    arguments.full = arguments.full or bool(given)
    if arguments.threads is None and not arguments.full:
        arguments.threads = os.cpu_count() or 1
    return arguments, given


def main() -> None:
    arguments, given = parsed(PARTS)
    chosen = {name: part for name, part in PARTS.items() if name in (arguments.only or [name] * part.in_all)}
    print(f"{platform.platform()}, {os.cpu_count()} cores, Python {platform.python_version()}", flush=True)
    machine = {"platform": platform.platform(), "cores": os.cpu_count(), "threads": arguments.threads}
    ends: dict[str, dict[str, Any]] = {}
    begun = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        for name, part in chosen.items():
            print(f"\n== {part.title} ==", flush=True)
            start = time.monotonic()
            options = [*part.options(arguments.full, arguments.threads), *given]
            ended, numbers = run(part, options, Path(folder, f"{name}.json"))
            seconds = time.monotonic() - start
            print(f"-- {name}: {ended} in {seconds:.0f} s", flush=True)
            command = [part.script, *options]
            ends[name] = {"command": command, "ended": ended, "seconds": seconds, "numbers": numbers}
            write_json(arguments.json, {**machine, "parts": ends})
    print(f"\n{len(chosen)} parts in {time.monotonic() - begun:.0f} s; numbers in {arguments.json}")
    bad = [
        f"{name} {end['ended']}" for name, end in ends.items() if is_bad(end["ended"], bool(arguments.only))
    ]
    if bad:
        sys.exit("; ".join(bad))


def is_bad(ended: str, is_named: bool) -> bool:
    """Whether a part has not done what was asked: it failed, or was named and did not run."""
    return ended.startswith("failed") or (is_named and ended == "not run")


if __name__ == "__main__":
    main()
