"""Runs every command in small for every value of every option, and counts how they end; `make fuzz`.

    every option of every configuration x values that nobody should write -> a forked run of some updates
    the own keys of every other command x the same values                 -> the command, forked

A run is right that comes to its end, or is refused in words. What is not right is listed. Results are kept
in a file, with the overrides and the output of what is not right, so that the same command goes on where it
was, and `--again` repeats what failed. Forms of a run whose package is not installed are counted, not run.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import shutil
import sys
import tempfile
from collections import Counter
from functools import partial
from importlib import import_module
from pathlib import Path

import yaml
from tests.commands import WARM, leave_pictures_blank
from tests.configuration.attempts import HANG, RAN, REFUSED, RIGHT, TRACEBACK, Attempt, attempt
from tests.configuration.changes import all_changes, some_changes
from tests.configuration.compositions import composed_or_refused
from tests.configuration.forms import RUNS, SMALL, lacks, names_of_forms
from tests.configuration.small_commands import COMMANDS

from bapo_lightning.cli import train
from bapo_lightning.configuration.compose import requested_ranks, resolve
from bapo_lightning.configuration.early import refuse_early
from bapo_lightning.configuration.validate import validate
from bapo_lightning.runs import train as training
from bapo_lightning.runs.command import command, number_type
from bapo_lightning.system.errors import ConfigError
from bapo_lightning.system.ranks.launch import starts_ranks
from bapo_lightning.system.values import Count, Seconds, Seed, Workers
from bapo_lightning.tools.commands.rehearse import share_of

RESULTS = Path("outputs/fuzz.jsonl")
NOT_HERE = "not run here"
SLOW = "model.compile"  # of a minute, in a compiler


@command(1)
def whole_run(name, overrides):
    """Does as the command line would, but for the pictures; returns the exit code."""
    leave_pictures_blank()
    if name in COMMANDS:
        return COMMANDS[name].run(overrides)
    if name not in RUNS:  # what is left to change are parts that pictures see by their metrics alone
        training.plot_run = lambda folder: None
    return train.train(composed_or_refused(*overrides))


def is_refused(overrides):
    """Whether the checks refuse it, in the order of a run and without a fork: nine of ten are."""
    try:
        plain = resolve(composed_or_refused(*overrides))
        refuse_early(plain)
        starts_ranks(*requested_ranks(plain))
        validate(plain)
    except ConfigError:
        return True
    except Exception:
        return False  # the run tells
    return False


def tried(name, run, change, folder, seconds):
    """How a run with a change ends, as a row of results."""
    if name in COMMANDS:
        overrides = COMMANDS[name].given(change)
    else:
        overrides = [*SMALL, *(run or ()), *[change] * bool(change)]
    if run is None:
        done = Attempt(NOT_HERE, f"needs {lacks(name)}", 0.0)
    elif change and name not in COMMANDS and is_refused(overrides):
        done = Attempt(REFUSED, "", 0.0)
    else:
        limit = seconds * (10 if SLOW in change else 1)
        done = attempt(partial(whole_run, name, overrides), folder, limit)
    shutil.rmtree(folder, ignore_errors=True)
    row = {"run": name, "change": change, "ended": done.ended, "seconds": round(done.seconds, 2)}
    if done.ended not in (RAN, REFUSED) or not change:
        row |= {"overrides": overrides, "last": done.last_line, "output": done.text[-6000:]}
    return row


def known(file):
    rows = map(json.loads, file.read_text().splitlines()) if file.exists() else ()
    return {(row["run"], row["change"]): row for row in rows}


def is_told(row):
    """Whether it went as it should: unchanged runs run."""
    return row["ended"] == NOT_HERE or row["ended"] in (RIGHT if row["change"] else (RAN,))


def work(items, results, seconds):
    """Tries all of these, and appends a row for each to a file."""
    scratch = Path(tempfile.mkdtemp(prefix="fuzz-"))
    try:
        for number, item in enumerate(items):
            row = tried(*item, scratch / str(number), seconds)
            if not is_told(row):
                print(f"{row['ended']}: {row['run']} {row['change']}: {row['last']}", flush=True)
            with results.open("a") as file:
                file.write(json.dumps(row) + "\n")
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def work_with(workers, items, results, seconds):
    """`work`, shared out among so many processes."""
    children = []
    for number in range(workers):
        if (child := os.fork()) == 0:
            try:
                work(items[number::workers], results, seconds)
            finally:
                os._exit(0)
        children.append(child)
    for child in children:
        os.waitpid(child, 0)


def get_ready():
    """Does once what each run would do anew."""
    for name in WARM:
        import_module(name)
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    yaml.SafeLoader = yaml.CSafeLoader
    gc.collect()
    gc.freeze()


@command(2)
def main(arguments=None):
    parser = argparse.ArgumentParser(prog="make fuzz", description=__doc__.partition("\n")[0])
    parser.add_argument("--only", default="", help="changes that hold this text")
    kinds = {"training": names_of_forms(), "commands": [*COMMANDS]}
    parser.add_argument("--of", nargs="+", choices=kinds, default=[*kinds], help="default: both")
    parser.add_argument("--share", default="1/1", help="N/M: the Nth of M parts")
    few = "so many changes of a few forms of run, drawn by --seed"
    parser.add_argument("--sample", type=number_type(Count), help=few)
    parser.add_argument("--seed", type=number_type(Seed), default=0)
    parser.add_argument("--again", action="store_true", help="what was not right, once more")
    parser.add_argument("--results", type=Path, default=RESULTS, help=f"default: {RESULTS}")
    parser.add_argument(
        "--seconds", type=number_type(Seconds, "seconds"), default=60, help="that a run may take"
    )
    cores = min(4, os.cpu_count() or 1)
    many = f"processes that try them, here {cores}"
    parser.add_argument("--workers", type=number_type(Workers), default=cores, help=many)
    given = parser.parse_args(arguments)
    get_ready()
    given.results.parent.mkdir(parents=True, exist_ok=True)
    names = [name for kind in given.of for name in kinds[kind]]
    changes = all_changes(names) if given.sample is None else some_changes(names, given.sample, given.seed)
    meant = [item for item in share_of([*changes], given.share, "--share ") if given.only in item[2]]
    before = known(given.results)
    keys = [(name, change) for name, _, change in meant]
    left = [
        item
        for item, key in zip(meant, keys, strict=True)
        if key not in before or (given.again and not is_told(before[key]))
    ]
    work_with(given.workers, left, given.results, given.seconds)
    after = known(given.results)
    return told([after[key] for key in keys if key in after], len(keys))


def told(rows, count):
    """Prints how they ended; returns the exit code."""
    ends = Counter(dict.fromkeys((*RIGHT, TRACEBACK, HANG), 0))
    ends.update(row["ended"] for row in rows)
    print(f"{count} changes: {', '.join(f'{count} {ended}' for ended, count in ends.items())}")
    for row in rows:
        if row["ended"] == NOT_HERE:
            print(f"{NOT_HERE}: {row['run']} {row['last']}")
    return int(len(rows) < count or not all(map(is_told, rows)))


if __name__ == "__main__":
    sys.exit(main())
