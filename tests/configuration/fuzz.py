"""Runs the smallest whole run for every value of every option, and counts how they end; `make fuzz`.

    every option of every configuration x values that nobody should write -> a forked run of some updates

A run is right that trains to its end, or is refused in words. What is not right is listed with
the command that shows it. Results are kept in a file, so that the same command goes on where it was, and
`--again` repeats what failed.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
from collections import Counter
from functools import partial
from importlib import import_module
from itertools import islice
from pathlib import Path

from hydra.errors import HydraException
from tests.commands import WARM, leave_pictures_blank
from tests.configuration.attempts import RAN, REFUSED, RIGHT, Attempt, attempt
from tests.configuration.changes import SMALL, all_changes
from tests.configuration.compositions import unresolved

from bapo_lightning.cli import train
from bapo_lightning.cli.command import command
from bapo_lightning.configuration.compose import composition_problem, requested_ranks, resolve
from bapo_lightning.configuration.group_names import refuse_no_names
from bapo_lightning.configuration.validate import validate
from bapo_lightning.errors import ConfigError
from bapo_lightning.ranks.launch import starts_ranks

RESULTS = Path("outputs/fuzz.jsonl")
SLOW = "model.compile"  # of a minute, in a compiler


def composed(overrides):
    refuse_no_names(overrides)
    try:
        return unresolved(*overrides)
    except HydraException as error:
        raise ConfigError([composition_problem(error, lambda key: {})]) from None


@command(1)
def whole_run(overrides):
    """Trains as the command line would, but for the pictures; returns the exit code."""
    leave_pictures_blank()
    return train.train(composed(overrides))


def is_refused(overrides):
    """Whether the checks refuse it, asked without a fork: nine of ten changes are."""
    try:
        plain = resolve(composed(overrides))
        starts_ranks(*requested_ranks(plain))
        validate(plain)
    except ConfigError:
        return True
    except Exception:
        return False  # the run tells
    return False


def known(file):
    rows = map(json.loads, file.read_text().splitlines()) if file.exists() else ()
    return {(row["run"], row["change"]): row for row in rows}


def share_of(items, text):
    number, count = map(int, text.split("/"))
    return islice(items, number - 1, None, count)


def main(arguments=None):
    parser = argparse.ArgumentParser(prog="make fuzz", description=__doc__.partition("\n")[0])
    parser.add_argument("--only", default="", help="changes that hold this text")
    parser.add_argument("--share", default="1/1", help="N/M: the Nth of M parts")
    parser.add_argument("--again", action="store_true", help="what was not right, once more")
    parser.add_argument("--results", type=Path, default=RESULTS, help=f"default: {RESULTS}")
    parser.add_argument("--seconds", type=float, default=60, help="that a run may take")
    given = parser.parse_args(arguments)
    for name in WARM:
        import_module(name)
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    results = known(given.results)
    given.results.parent.mkdir(parents=True, exist_ok=True)
    ended = []
    scratch = Path(tempfile.mkdtemp(prefix="fuzz-"))
    try:
        for number, (name, run, change) in enumerate(share_of(all_changes(), given.share)):
            if given.only not in change:
                continue
            before = results.get((name, change))
            ended.append((name, change))
            if before and (before["ended"] in RIGHT or not given.again):
                continue
            overrides = [*SMALL, *run, *[change] * bool(change)]
            if change and is_refused(overrides):
                done = Attempt(REFUSED, "", 0.0)
            else:
                limit = given.seconds * (10 if SLOW in change else 1)
                done = attempt(partial(whole_run, overrides), scratch / str(number), limit)
            shutil.rmtree(scratch / str(number), ignore_errors=True)
            row = {"run": name, "change": change, "ended": done.ended, "seconds": round(done.seconds, 2)}
            if not done.is_right or not change:
                row |= {"overrides": overrides, "last": done.last_line, "output": done.text[-6000:]}
                print(f"{done.ended}: {name} {change}: {done.last_line}", flush=True)
            results[name, change] = row
            with given.results.open("a") as file:
                file.write(json.dumps(row) + "\n")
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return told([results[key] for key in ended])


def told(rows):
    """Prints how they ended; returns the exit code."""
    ends = Counter(row["ended"] for row in rows)
    print(f"{len(rows)} changes: {', '.join(f'{count} {ended}' for ended, count in ends.most_common())}")
    return int(not set(ends) <= set(RIGHT) or any(row["ended"] != RAN for row in rows if not row["change"]))


if __name__ == "__main__":
    sys.exit(main())
