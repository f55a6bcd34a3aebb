"""What a machine with GPUs can do with this package: checks with value, limit and verdict; `make gpu-check`.

    python bench/gpu_check.py --stage kernels train memory speed vllm --minutes 25

    kernels   token scores, packing, checkpointing, bound search, Liger's kernels, deterministic mode
    train     the quickstart beside a CPU's, models of real shapes, engine against trainer
    memory    the plan's prediction against measured peaks, the largest model that fits
    speed     tokens a second, share of the peak, what an update waits for, generation
    vllm      vLLM after five weight syncs, ranks over several GPUs

Models are random and made from a config: nothing is downloaded. Each check runs in a process of its own. What
lacks a package or a GPU is skipped by name. When the minutes are over, what is left is named, and the same
command goes on with it; `--again` begins anew. Without a GPU the same checks run at small sizes on the CPU.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from gpu.checks import Check, Finding, Machine, skipped
from measuring import write_json
from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parents[1]
STAGES = ("kernels", "train", "memory", "speed", "vllm")
PACKAGES = ("torch", "transformers", "lightning", "vllm", "flash-attn", "liger-kernel")
MARK = "finding: "  # begins a line of a check's process that holds a finding
LONGEST = 600.0  # seconds of one check

Record = dict[str, Any]


def checks_of(stage: str) -> tuple[Check, ...]:
    """Returns the checks of a stage."""
    found: tuple[Check, ...] = import_module(f"gpu.{stage}").CHECKS
    return found


def lacking(check: Check, num_gpus: int) -> str:
    """Returns why a check cannot run here; empty if it can."""
    missing = [name for name in check.packages if find_spec(name) is None]
    if missing:
        return f"{', '.join(missing)} is not installed"
    return f"needs {check.gpus} GPUs, {num_gpus} found" if num_gpus < check.gpus else ""


def run_apart(stage: str, check: Check, device: str, seconds: float) -> list[Finding] | None:
    """Runs a check in its own process; returns its findings, or None if its time was over."""
    command = [sys.executable, __file__, "--one", stage, check.name, "--device", device]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False)
    except subprocess.TimeoutExpired:
        return None
    lines = done.stdout.splitlines()
    found = [Finding(**json.loads(line.removeprefix(MARK))) for line in lines if line.startswith(MARK)]
    if done.returncode:
        last = (done.stderr.strip().splitlines() or [f"ended with {done.returncode}"])[-1]
        found.append(Finding(check.name, None, verdict="FAILED", note=last))
    return found


def run_one(stage: str, name: str, device: str) -> None:
    """Runs a check in this process, and prints each finding as a line of JSON."""
    (check,) = (check for check in checks_of(stage) if check.name == name)
    for finding in check.run(Machine(device)):
        print(MARK + json.dumps(asdict(finding)), flush=True)


def run_stages(stages: Sequence[str], device: str, deadline: float, record: Record, path: Path) -> list[str]:
    """Runs what the record does not hold yet and writes it after each check; returns what was left undone."""
    left, num_gpus = [], torch.cuda.device_count() if device == "cuda" else 0
    for stage in stages:
        for check in checks_of(stage):
            name = f"{stage}.{check.name}"
            if name in record["checks"]:
                continue
            if reason := lacking(check, num_gpus):
                found: list[Finding] | None = [skipped(check.name, reason)]
                seconds = 0.0
            else:
                begun = time.monotonic()
                room = min(LONGEST, deadline - begun)
                found = run_apart(stage, check, device, room) if room > 0 else None
                seconds = time.monotonic() - begun
                if found is None and room == LONGEST:
                    found = [
                        Finding(check.name, None, verdict="FAILED", note=f"took more than {LONGEST:.0f} s")
                    ]
            if found is None:
                left.append(name)
                continue
            record["checks"][name] = {"seconds": seconds, "findings": [asdict(each) for each in found]}
            write_json(path, record)
            print(f"{name}: {seconds:.0f} s", flush=True)
    return left


def machine_facts(device: str) -> dict[str, Any]:
    """Returns what a reader has to know of the machine."""
    facts: dict[str, Any] = {"platform": platform.platform(), "python": platform.python_version()}
    for package in PACKAGES:
        try:
            facts[package] = version(package)
        except PackageNotFoundError:
            facts[package] = "not installed"
    if device == "cuda":
        own = torch.cuda.get_device_properties(0)
        facts |= {
            **{"gpu": own.name, "number of GPUs": torch.cuda.device_count()},
            **{"memory of each": f"{own.total_memory / 1e9:.0f} GB", "CUDA": torch.version.cuda},
        }
    return {"gpu": "none", **facts}


def findings_of(record: Record) -> Iterator[tuple[str, Finding]]:
    """Yields each finding with its stage."""
    for name, entry in record["checks"].items():
        for each in entry["findings"]:
            yield name.partition(".")[0], Finding(**each)


def number(value: float | None) -> str:
    """Formats a value with three digits."""
    return "" if value is None else f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def page(record: Record, command: str) -> str:
    """Returns the page: the machine, and a table for each stage."""
    lines = [f"# GPU check: {record['machine']['gpu']}", "", f"`{command}`", "", "| | |", "|---|---|"]
    lines += [f"| {key} | {value} |" for key, value in record["machine"].items()]
    stage = ""
    for own, each in findings_of(record):
        if own != stage:
            stage = own
            lines += ["", f"## {stage}", "", "| check | value | limit | verdict | |", "|---|---|---|---|---|"]
        shown = " ".join(filter(None, (number(each.value), each.unit)))
        lines.append(f"| {each.check} | {shown} | {number(each.limit)} | {each.verdict} | {each.note} |")
    return "\n".join(lines) + "\n"


def print_table(record: Record, console: Console) -> None:
    """Prints check, value, limit and verdict."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for title in ("check", "value", "limit", "verdict"):
        table.add_column(title, justify="right" if title in ("value", "limit") else "left")
    for _, each in findings_of(record):
        shown = " ".join(filter(None, (number(each.value), each.unit)))
        verdict = (
            f"{each.verdict}{': ' + each.note if each.note and each.verdict in ('FAILED', 'skipped') else ''}"
        )
        table.add_row(each.check, shown, number(each.limit), verdict)
    console.print(table)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the stages; returns 1 when a check failed, 3 when some are left."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--stage", nargs="+", choices=STAGES, default=STAGES, help="default: all")
    parser.add_argument("--minutes", type=float, default=25.0, help="after which no check goes on")
    parser.add_argument(
        "--device", choices=("cuda", "cpu"), default="cuda" if torch.cuda.is_available() else "cpu"
    )
    parser.add_argument("--output", type=Path, default=ROOT / "outputs" / "gpu-check", help="folder")
    parser.add_argument("--again", action="store_true", help="repeat what was done before")
    parser.add_argument("--one", nargs=2, metavar=("STAGE", "CHECK"), help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.one:
        stage, name = given.one
        run_one(stage, name, given.device)
        return 0
    deadline, path = time.monotonic() + 60 * given.minutes, given.output / "gpu-check.json"
    record: Record = {"machine": machine_facts(given.device), "checks": {}}
    earlier = json.loads(path.read_text()) if path.is_file() and not given.again else record
    if earlier["machine"] == record["machine"]:
        record = earlier
    left = run_stages(given.stage, given.device, deadline, record, path)
    print_table(record, Console())
    options = " ".join(sys.argv[1:] if arguments is None else arguments)
    text = page(record, f"make gpu-check{f' ARGS={chr(34)}{options}{chr(34)}' if options else ''}")
    (given.output / "gpu-check.md").write_text(text)
    failed = [each for _, each in findings_of(record) if each.is_bad]
    print(f"{len(failed)} failed; {path}, {given.output / 'gpu-check.md'}")
    if left:
        print(f"not done in {given.minutes:g} minutes: {', '.join(left)}; the same command goes on with them")
    return 1 if failed else 3 if left else 0


if __name__ == "__main__":
    sys.exit(main())
