"""What a machine with GPUs can do with this package: checks with value, limit and verdict; `make gpu-check`.

    python bench/gpu_check.py --like EXP=bapo_7b --stage machine rehearsal vllm --minutes 60

    machine   driver, compiler, shared memory, links between GPUs, collectives, disk, hub
    rehearsal experiments as a whole, and two of the flagship's updates with random weights
    vllm      vLLM after weight syncs, asleep beside a trainer, in groups of GPUs, children and servers
    memory    the plan's prediction against measured peaks, fragments, the largest model that fits
    kernels   token scores, packing, checkpointing, bound search, Liger's kernels, deterministic mode
    train     the quickstart beside a CPU's, models of real shapes, engine against trainer, ranks against one
    speed     tokens a second, share of the peak, prime-rl's shapes, what an update waits for, generation

Rehearsals need the model of their experiment; all other models are random and made from a config. Each check
runs in a process of its own. What lacks a package or a GPU is skipped by name. When the minutes are over,
what is left is named, and the same command goes on with it; `--again` begins anew. Without a GPU the same
checks run at small sizes on the CPU.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import signal
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
from gpu.checks import FILES, Check, Finding, Machine, skipped
from gpu.rehearsal import Experiment, rehearsals
from measuring import write_json
from rich.console import Console
from rich.table import Table

from bapo_lightning.runs.command import number_type
from bapo_lightning.system.values import Minutes

ROOT = Path(__file__).resolve().parents[1]
# What ends a run at its start comes first, since the minutes may be over before the last stage.
STAGES = ("machine", "rehearsal", "vllm", "memory", "kernels", "train", "speed")
PACKAGES = ("torch", "transformers", "lightning", "vllm", "flash-attn", "liger-kernel")
MARK = "finding: "  # begins a line of a check's process that holds a finding

Record = dict[str, Any]


def checks_of(stage: str, like: Sequence[Experiment] = (), num_gpus: int = 0) -> tuple[Check, ...]:
    """Returns the checks of a stage; rehearsals are of the experiments `like`."""
    checks: tuple[Check, ...] = import_module(f"gpu.{stage}").CHECKS
    return (*rehearsals(like, num_gpus), *checks) if stage == "rehearsal" else checks


def lacking(check: Check, device: str, num_gpus: int) -> str:
    """Returns why a check cannot run here; empty if it can."""
    missing = [name for name in check.packages if find_spec(name) is None]
    if missing:
        return f"{', '.join(missing)} is not installed"
    if check.on_cpu and device == "cpu":
        return ""
    return f"needs {check.gpus} GPUs, {num_gpus} found" if num_gpus < check.gpus else ""


def run_apart(stage: str, check: Check, options: Sequence[str], seconds: float) -> list[Finding] | None:
    """Runs a check in its own process; returns its findings, or None if its time was over."""
    command = [sys.executable, __file__, *options, "--one", stage, check.name]
    # The rewards of rehearsed runs are in `gpu`.
    path = os.pathsep.join(filter(None, (str(ROOT / "bench"), os.environ.get("PYTHONPATH"))))
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, "PYTHONPATH": path},
    ) as process:
        try:
            output, errors = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)  # with the runs that it started
            return None
        finally:
            shutil.rmtree(FILES, ignore_errors=True)
    lines = output.splitlines()
    findings = [Finding(**json.loads(line.removeprefix(MARK))) for line in lines if line.startswith(MARK)]
    if process.returncode:
        last = (errors.strip().splitlines() or [f"ended with {process.returncode}"])[-1]
        findings.append(Finding(check.name, None, verdict="FAILED", note=last))
    return findings


def run_one(check: Check, device: str) -> None:
    """Runs a check in this process, and prints each finding as a line of JSON."""
    for finding in check.run(Machine(device)):
        print(MARK + json.dumps(asdict(finding)), flush=True)


def run_stages(given: argparse.Namespace, deadline: float, record: Record, path: Path) -> list[str]:
    """Runs what the record does not hold yet and writes it after each check; returns what was left undone."""
    left, num_gpus = [], torch.cuda.device_count() if given.device == "cuda" else 0
    options = ["--device", given.device, *(word for words in given.like for word in ("--like", *words))]
    for stage in (stage for stage in STAGES if stage in given.stage):
        for check in checks_of(stage, given.like, num_gpus):
            name = f"{stage}.{check.name}"
            if name in record["checks"]:
                continue
            if reason := lacking(check, given.device, num_gpus):
                findings: list[Finding] | None = [skipped(check.name, reason)]
                seconds = 0.0
            else:
                begun = time.monotonic()
                room = min(check.seconds, deadline - begun)
                findings = run_apart(stage, check, options, room) if room > 0 else None
                seconds = time.monotonic() - begun
                if findings is None and room == check.seconds:
                    note = f"took more than {check.seconds:.0f} s"
                    findings = [Finding(check.name, None, verdict="FAILED", note=note)]
            if findings is None:
                left.append(name)
                continue
            record["checks"][name] = {"seconds": seconds, "findings": [asdict(each) for each in findings]}
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
        gpu = torch.cuda.get_device_properties(0)
        facts |= {
            **{"gpu": gpu.name, "number of GPUs": torch.cuda.device_count()},
            **{"memory of each": f"{gpu.total_memory / 1e9:.0f} GB", "CUDA": torch.version.cuda},
        }
    return {"gpu": "none", **facts}


def findings_of(record: Record) -> Iterator[tuple[str, Finding]]:
    """Yields each finding with its stage, stage after stage whatever ran first."""
    for stage in STAGES:
        for name, entry in record["checks"].items():
            if name.partition(".")[0] == stage:
                yield from ((stage, Finding(**each)) for each in entry["findings"])


def number(value: float | None) -> str:
    """Formats a value with three digits."""
    return "" if value is None else f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def page(record: Record, command: str) -> str:
    """Returns the page: the machine, and a table for each stage."""
    lines = [f"# GPU check: {record['machine']['gpu']}", "", f"`{command}`", "", "| | |", "|---|---|"]
    lines += [f"| {key} | {value} |" for key, value in record["machine"].items()]
    stage = ""
    for name, each in findings_of(record):
        if name != stage:
            stage = name
            lines += ["", f"## {stage}", "", "| check | value | limit | verdict | |", "|---|---|---|---|---|"]
        shown = " ".join(filter(None, (number(each.value), each.unit)))
        note = " ".join(each.note.split()).replace("|", "/")
        lines.append(f"| {each.check} | {shown} | {number(each.limit)} | {each.verdict} | {note} |")
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
    parser.add_argument(
        "--like",
        nargs="+",
        action="append",
        default=[],
        metavar="EXP=NAME",
        help="an experiment to rehearse, and changes: EXP=bapo_7b trainer.devices=4; may be given again",
    )
    parser.add_argument(
        "--minutes", type=number_type(Minutes, "minutes"), default=60.0, help="after which no check goes on"
    )
    parser.add_argument(
        "--device", choices=("cuda", "cpu"), default="cuda" if torch.cuda.is_available() else "cpu"
    )
    parser.add_argument("--output", type=Path, default=ROOT / "outputs" / "gpu-check", help="folder")
    parser.add_argument("--again", action="store_true", help="repeat what was done before")
    parser.add_argument("--one", nargs=2, metavar=("STAGE", "CHECK"), help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if wrong := [words[0] for words in given.like if not words[0].startswith("EXP=")]:
        parser.error(f"--like {wrong[0]}: write the experiment first, --like EXP=bapo_7b")
    if given.one:
        stage, name = given.one
        checks = checks_of(stage, given.like, torch.cuda.device_count())
        run_one(next(check for check in checks if check.name == name), given.device)
        return 0
    deadline, path = time.monotonic() + 60 * given.minutes, given.output / "gpu-check.json"
    record: Record = {"machine": machine_facts(given.device), "checks": {}}
    earlier = json.loads(path.read_text()) if path.is_file() and not given.again else record
    if earlier["machine"] == record["machine"]:
        record = earlier
    left = run_stages(given, deadline, record, path)
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
