"""Kills a tiny run at random moments with SIGKILL, resumes it each time, and compares it with one that was
left alone.

    python bench/kill_and_resume.py [--kills 20] [--regimes replay partial ...]

Synchronous regimes must end with the same weights, optimizer, metrics and ledger to the bit. Asynchronous
generation depends on timing, but its schedule is recorded: a run that is left alone and follows the schedule
of the killed one must end as that did, to the bit. Where the killed run follows a recorded schedule itself,
it must end as one that follows it undisturbed. Always, each work item must have exactly one fate, each update
its row, and no token may be older than the bound. Every update writes a checkpoint, so that many kills come
while one is written. With turns, an environment that cannot take anything back is asked each of them once.
Programs of an agent are killed as well, before the run, and none may outlive it.
Of several ranks, any may be killed, or the process that started them.

"saved slowly" makes checkpoints rarely and hashes them for a second, as large models do; of two kills the
second comes soon after the resume. "stopped" sends SIGTERM or Ctrl-C instead, at moments from the start of
the command to the second update; each must end with the exit code of the signal, a status that is true, and
a checkpoint of the last update.
"""

from __future__ import annotations

import json
import math
import os
import random
import re
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import psutil
from measuring import bench_parser
from run_comparison import differences, ledger_problems, ranks_of, row_problems

from bapo_lightning.callbacks import run_checkpoint
from bapo_lightning.configuration.compose import compose_run
from bapo_lightning.configuration.validate import validate
from bapo_lightning.environments.environment import Turn
from bapo_lightning.modules.policy.folder import model_path

# Imported before the forks below, so that a killed run costs no start of Python. This process computes
# nothing and therefore has no threads.
from bapo_lightning.runs.train import run
from bapo_lightning.system.run_folder.checkpoint import Fingerprint, fingerprints, list_checkpoints
from bapo_lightning.system.run_folder.record import read_manifest, read_rollouts, read_run
from bapo_lightning.types import Problem, Reply

CALLS_FILE = "CALLS_FILE"
SETTINGS = (
    "experiment=additions",
    *("scale.prompts_per_batch=8", "scale.group_size=4", "scale.num_rollout_batches=30"),
    *("scale.validation_problems=8", "callbacks.validation.every=20", "callbacks.checkpoint.every=1"),
    "cpu_threads=1",
    "+data.train.limit=30",  # eight epochs
)
# A turn ends with `;` too, and an environment answers that must not get the same turn twice.
TURNS = (
    *("environment=calculator", "environment.stop=[';']", "environment.max_turns=4"),
    *("environment.feedback.template='{feedback}'", "scale.max_feedback_tokens=8", "~environment.answers"),
    "+environment.answers={_target_: kill_and_resume.Recording}",
    "callbacks.rollout_writer.every=1",  # all that is trained on
    "callbacks.rollout_writer.num_groups=8",
)
# Replies come at any time, and last bits depend on what then shares a forward pass: the schedule of an
# asynchronous run has it; synchronous runs here ask in the thread that samples.
SLOW_TURNS = (*TURNS, "environment.workers=2", "+environment.answers.seconds=0.02")
# Programs (agent_program.py) that ask an endpoint; a kill hits one of them, too, before it hits the run.
PROGRAM = str(Path(__file__).with_name("agent_program.py"))
AGENT = (
    *("environment=agent", "environment/feedback=plain", "environment.stop=[';']", "environment.max_turns=4"),
    *("scale.max_feedback_tokens=8", "reward=environment", "environment.workers=0"),
    # A start of Python for each conversation, so fewer of them.
    *("environment.answers.edits=branch", "scale.group_size=2", "scale.num_rollout_batches=8"),
    f"environment.answers.endpoint.command=[{sys.executable},-S,{PROGRAM}]",
)
ASYNC_AGENT = (*AGENT, "environment.workers=2")
ASYNC_PARTIAL = ("regime=async", "regime.partial_tokens=8", "regime.max_age=11")
SLOWLY = "callbacks.checkpoint.every=4"  # with a second of hashing each
RANKS = ("strategy=ddp", "trainer.devices=2", "trainer.accelerator=cpu")
REGIMES = {
    "replay": ("regime=replay",),
    "replay, dynamic sampling": ("regime=replay", "algorithm=dapo"),
    "partial": ("regime=partial",),
    "partial, mask": ("regime=partial", "regime.max_age=9", "regime.stale_action=mask"),
    "reuse": ("regime=reuse",),
    "async": ("regime=async",),
    "async, partial": ASYNC_PARTIAL,
    "async, following": ("regime=async",),
    "async, partial, following": ASYNC_PARTIAL,
    "replay, ranks": ("regime=replay", *RANKS),
    "async, partial, ranks": (*ASYNC_PARTIAL, *RANKS),
    "replay, turns": ("regime=replay", *TURNS),
    "partial, mask, turns": ("regime=partial", "regime.max_age=9", "regime.stale_action=mask", *TURNS),
    "reuse, turns": ("regime=reuse", *TURNS),
    "async, partial, turns": (*ASYNC_PARTIAL, *SLOW_TURNS),
    "async, partial, turns, following": (*ASYNC_PARTIAL, *SLOW_TURNS),
    # None follows: what was running when it is killed begins anew, with other samples.
    "stream": ("regime=stream", "rollout.engine.max_rows=12"),
    "stream, recomputed, mask": (
        *("regime=stream", "regime.stream=recompute", "regime.stale_action=mask", "regime.max_age=5"),
        "rollout.engine.max_rows=12",
    ),
    "stream, ranks": ("regime=stream", *RANKS),
    "stream, turns": ("regime=stream", *SLOW_TURNS),
    "replay, agent": ("regime=replay", *AGENT),
    "partial, mask, agent": ("regime=partial", "regime.max_age=9", "regime.stale_action=mask", *AGENT),
    "async, partial, agent": (*ASYNC_PARTIAL, *ASYNC_AGENT),
    "stream, agent": ("regime=stream", *ASYNC_AGENT),
    "async, saved slowly": ("regime=async", SLOWLY),
    "stream, saved slowly": ("regime=stream", SLOWLY),
    "replay, stopped": ("regime=replay",),
    "replay, ranks, stopped": ("regime=replay", *RANKS),
    "replay, shards, stopped": ("regime=replay", "strategy=fsdp", *RANKS[1:]),
}
OUTLIVED = "while programs outlived the run"
OVERLAPPING = ("async", "stream")  # first words of regimes that record a schedule


@dataclass(frozen=True)
class Recording:
    """An environment that answers a turn that ends with `;` by its number, after up to `seconds`, and appends
    a line to the file that the environment variable `CALLS_FILE` names.
    """

    seconds: float = 0.0

    def start(self, problem: Problem) -> list[str]:
        return []

    def respond(self, turn: Turn) -> Reply:
        time.sleep(random.SystemRandom().uniform(0, self.seconds))
        texts = [*turn.state, turn.text]
        reply = Reply(str(turn.number), is_done=not turn.text.endswith(";"), state=texts, calls=1)
        line = json.dumps([turn.problem.id, *texts]) + "\n"
        file = os.open(os.environ[CALLS_FILE], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(file, line.encode())
        os.close(file)
        return reply


def main() -> int:
    parser = bench_parser(__doc__, has_json=False, kills=20, seed=0)
    parser.add_argument("--regimes", nargs="+", choices=REGIMES, default=list(REGIMES))
    arguments = parser.parse_args()
    moments = random.Random(arguments.seed)
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        for name in arguments.regimes:
            inside = Path(folder, name.replace(", ", "-").replace(" ", "-"))
            problems = drill(inside, REGIMES[name], arguments.kills, moments, name)
            failed += bool(problems)
            for problem in problems:
                print(f"  FAILED: {problem}", flush=True)
    return 1 if failed else 0


def drill(
    folder: Path, overrides: Sequence[str], num_kills: int, moments: random.Random, name: str
) -> list[str]:
    """Makes one run without kills and one with `num_kills` kills; returns their differences and other
    faults.
    """
    folder.mkdir()
    whole, killed = folder / "whole", folder / "killed"
    if "following" in name:
        finish(folder / "recorded", overrides)
        overrides = [*overrides, f"regime.schedule={folder / 'recorded'}"]
    finish(whole, overrides)
    step_seconds = [row["time/step_seconds"] for row in read_run(whole).rows]
    # Counted in updates, so that the last kill comes before the end on machines of every speed.
    most = max(1, len(step_seconds) // (num_kills + 1))
    if "stopped" in name:
        start_seconds = seconds_to_update(folder / "timed", overrides)
        stops = [stop(killed, overrides, start_seconds, moments) for _ in range(num_kills)]
        kills, faults = Counter(moment for moment, _ in stops), [each for _, lines in stops for each in lines]
    else:
        seconds = [median(step_seconds)] * num_kills
        if SLOWLY in overrides:  # the second of two kills comes before the next checkpoint
            seconds[1::2] = [0.0] * (num_kills // 2)
        kills, faults = Counter(kill(killed, overrides, most, each, moments) for each in seconds), []
    finish(killed, overrides)
    problems = [f"the run had ended before {kills['too late']} of the kills"] if kills["too late"] else []
    problems += [f"{kills[OUTLIVED]} kills left a program behind"] * bool(kills[OUTLIVED])
    problems += faults + ledger_problems(killed) + row_problems(killed)
    if name.startswith(OVERLAPPING) and "following" not in name:
        whole = folder / "again"
        finish(whole, [*overrides, f"regime.schedule={killed}"])
    problems += differences(whole, killed)
    if "turns" in name:
        problems += call_problems(whole, killed, is_async=name.startswith(OVERLAPPING))
    resumes = len(read_run(killed).manifest.get("resumes", []))
    where = ", ".join(f"{count} {moment}" for moment, count in kills.items())
    result = "FAILED" if problems else "as if it had never stopped"
    print(f"{name}: {num_kills} kills ({where}), {resumes} resumes: {result}", flush=True)
    return problems


def finish(folder: Path, overrides: Sequence[str]) -> None:
    _, status = os.waitpid(start_run(folder, overrides), 0)
    if status:
        raise SystemExit(
            f"the run in {folder} ended with status {status}:\n{(folder.parent / 'log').read_text()[-3000:]}"
        )


def kill(
    folder: Path, overrides: Sequence[str], most: int, step_seconds: float, moments: random.Random
) -> str:
    """Begins or resumes a run and kills it at a random moment; returns the phase that the kill hit.

    One kill in five comes within the start of the session, the rest within a step after one of its first
    `most` updates; without `step_seconds` it comes within the second after the resume.
    """
    resumes = log_of(folder).count("resumed ")
    process = start_run(folder, overrides)
    before, ended = updates_saved(folder), False
    if not step_seconds:
        while not ended and log_of(folder).count("resumed ") == resumes and updates_saved(folder) == before:
            ended = os.waitpid(process, os.WNOHANG) != (0, 0)
            time.sleep(0.001)
        time.sleep(moments.uniform(0, 1))
        return end(process, folder, before, ended, moments)
    at_start = moments.random() < 0.2
    until = before + 1 if at_start else before + moments.randint(1, most)
    deadline = time.monotonic() + (moments.uniform(0, 1.5) if at_start else math.inf)
    while not ended and updates_saved(folder) < until and time.monotonic() < deadline:
        ended = os.waitpid(process, os.WNOHANG) != (0, 0)
        time.sleep(0.001)
    time.sleep(0 if at_start else moments.uniform(0, step_seconds))
    return end(process, folder, before, ended, moments)


def end(process: int, folder: Path, before: int, ended: bool, moments: random.Random) -> str:
    """Kills a run, unless it has ended; returns the phase that the kill hit."""
    if ended or os.waitpid(process, os.WNOHANG) != (0, 0):
        return "too late"
    for program in programs_of(process)[: moments.randint(0, 2)]:  # if the run has any: none, one or two
        program.kill()
        time.sleep(moments.uniform(0, 0.05))
    alive = programs_of(process)
    os.kill(moments.choice([process, *(rank.pid for rank in ranks_of(folder))]), signal.SIGKILL)
    os.waitpid(process, 0)
    while ranks_of(folder):
        time.sleep(0.05)
    psutil.wait_procs(alive, timeout=10)
    if any(program.is_running() for program in alive):
        return OUTLIVED
    if any((folder / "checkpoints").glob(".*.partial")):
        return "while saving"
    return "between two saves" if updates_saved(folder) > before else "while starting"


def programs_of(process: int) -> list[psutil.Process]:
    """The programs of an agent's conversations that a run has started and that have not ended."""
    programs = []
    for child in psutil.Process(process).children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            if PROGRAM in child.cmdline() and child.status() != psutil.STATUS_ZOMBIE:
                programs.append(child)
    return programs


def seconds_to_update(folder: Path, overrides: Sequence[str]) -> float:
    """Seconds from the start of the command to the first update."""
    began, process = time.monotonic(), start_run(folder, overrides, is_command=True)
    while not updates_saved(folder):
        time.sleep(0.01)
    seconds = time.monotonic() - began
    os.kill(process, signal.SIGKILL)
    os.waitpid(process, 0)
    return seconds


def stop(
    folder: Path, overrides: Sequence[str], start_seconds: float, moments: random.Random
) -> tuple[str, list[str]]:
    """Begins or resumes a run and stops it politely within its start or shortly after; returns where the
    signal came, and what the run did not keep of its promises.
    """
    number, wait = moments.choice([signal.SIGTERM, signal.SIGINT]), moments.uniform(0.2, 1.2) * start_seconds
    before, written = updates_saved(folder), len(log_of(folder))
    process, until = start_run(folder, overrides, is_command=True), time.monotonic() + wait
    while time.monotonic() < until and updates_saved(folder) < before + 2:  # or a run that starts fast ends
        time.sleep(0.01)
    status, updates = status_of(folder), updates_saved(folder)
    os.kill(process, number)
    code = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    said, name = log_of(folder)[written:], signal.Signals(number).name
    faults = [f"{name} after {wait:.1f} s: exit code {code}"] * (code != 128 + number)
    faults += [f"{name} after {wait:.1f} s: a traceback"] * ("Traceback" in said)
    faults += [f"{name} after {wait:.1f} s: status {status_of(folder)}"] * (
        status_of(folder) not in (None, "interrupted")
    )
    rows = len(read_run(folder).rows) if status_of(folder) else 0
    faults += [f"{rows} updates, {updates_saved(folder)} of them saved"] * (rows != updates_saved(folder))
    where = "in training" if updates > before else "in set-up of the run" if status else "before the run"
    return f"{name} {where}", faults


def status_of(folder: Path) -> str | None:
    return read_manifest(folder).get("status")


def log_of(folder: Path) -> str:
    path = folder.parent / "log"
    return path.read_text() if path.exists() else ""


def updates_saved(folder: Path) -> int:
    checkpoints = list_checkpoints(folder / "checkpoints")
    return int(checkpoints[0].name.removeprefix("update")) if checkpoints else 0


def start_run(folder: Path, overrides: Sequence[str], is_command: bool = False) -> int:
    """Runs in a forked process, or as a command, with its output in a file; returns the process id."""
    process = os.fork()
    if process:
        return process
    log = os.open(folder.parent / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    status = 1
    try:
        signal.signal(
            signal.SIGINT, signal.SIG_DFL
        )  # a shell lets what it starts in the background ignore it
        os.environ[CALLS_FILE] = str(calls_file(folder))
        options = [*SETTINGS, *overrides, f"run_folder={folder}", "resume=auto"]
        if is_command or "trainer.devices=2" in overrides:
            os.execv(sys.executable, [sys.executable, "-m", "bapo_lightning.cli.train", *options])
        if SLOWLY in overrides:
            run_checkpoint.fingerprints = hashed_slowly  # type: ignore[attr-defined]
        run(validate(compose_run(options)))
        status = 0
    except BaseException as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
    finally:
        os._exit(status)


def hashed_slowly(partial: Path, rank: int) -> dict[str, Fingerprint]:
    """As long as a gigabyte of weights takes."""
    time.sleep(1)
    return fingerprints(partial, rank)


def call_problems(whole: Path, killed: Path, is_async: bool) -> list[str]:
    """Checks that the environment of the killed run got the same turns as the other's, each as often. With
    asynchronous generation the two end in different passes, so that it must have got all that was trained on.
    """
    turns, others = (Counter(calls_file(folder).read_text().splitlines()) for folder in (killed, whole))
    missing, extra = others - turns, turns - others
    if is_async:
        missing, extra = Counter(set(answered_turns(killed)) - turns.keys()), Counter()
    problems = [f"{missing.total()} turns were never asked"] * bool(missing)
    return problems + [f"{extra.total()} turns were asked again"] * bool(extra)


def answered_turns(folder: Path) -> Iterator[str]:
    """Yields each turn of a trained sample that feedback came to, as `Recording` writes it:
    without special tokens, which no environment gets.
    """
    file = Path(model_path("package://bapo_lightning/tiny_worlds/additions/model"), "tokenizer_config.json")
    tokenizer = json.loads(file.read_text())
    special = re.compile("|".join(re.escape(tokenizer[name]) for name in ("eos_token", "pad_token")))
    for row in read_rollouts(folder):
        said: list[str] = []
        for turn in row.get("turns", ()):
            if turn["by"] == "environment":
                yield json.dumps([row["problem"], *said])
            else:
                said.append(special.sub("", turn["text"]))


def calls_file(folder: Path) -> Path:
    return folder.parent / f"{folder.name}-calls.jsonl"


if __name__ == "__main__":
    sys.exit(main())
