"""Rehearses experiments: all of their parts, in small, on this machine.

Trains for two rollout batches, stops and resumes on the way, exports, and evaluates the export. On GPUs that
can hold the experiment with its real model, elsewhere with a small one of its family.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

from bapo_lightning.configuration.conf_dir import choice_files
from bapo_lightning.report.progress.display import displayed_phases
from bapo_lightning.runs.command import command, end_with
from bapo_lightning.system.errors import BapoLightningError, ConfigError

EXPERIMENT, FOLDER, SHARE = "experiment=", "rehearsal.folder=", "rehearsal.share="
FAILED = 3  # exit code
T = TypeVar("T")
_NUMBER = re.compile("[1-9][0-9]{0,5}")
USAGE = """\
usage: python -m bapo_lightning rehearse [experiment=NAME,NAME] [KEY=VALUE ...]
       make rehearse EXP=bapo_7b

Without a name all experiments are rehearsed. Other keys are as for make train, and
  rehearsal.folder=FOLDER  where files go (default: outputs/rehearsal); each experiment has a folder in it
  rehearsal.share=N/M      the Nth of M parts of the experiments not named; 9/8 is 1/8"""


@command(1, usage=lambda: USAGE)
def main() -> int:
    """Rehearses; the exit code is 3 unless all parts of all experiments ran."""
    names, folder, overrides = _read_arguments(sys.argv[1:])
    failed = []
    for name in names:
        print(f"\n{name}", flush=True)
        try:
            if not _rehearse(name, overrides, folder / name):
                failed.append(name)
        except BapoLightningError as error:
            print(f"error: {error}", flush=True)
            failed.append(name)
    failures = f": {', '.join(failed)} did not" if failed else ""
    print(f"\n{len(names) - len(failed)} of {len(names)} experiments ran whole{failures}")
    return FAILED if failed else 0


def _read_arguments(arguments: Sequence[str]) -> tuple[list[str], Path, list[str]]:
    options = EXPERIMENT, FOLDER, SHARE
    given = {key: text.removeprefix(key) for key in options for text in arguments if text.startswith(key)}
    overrides = [text for text in arguments if not text.startswith(options)]
    known = sorted(choice_files("experiment"))
    named = [name for name in given.get(EXPERIMENT, "").split(",") if name]
    if unknown := [name for name in named if name not in known]:
        fault = f"experiment={','.join(unknown)}: no such experiment; write some of {', '.join(known)}"
        raise ConfigError([fault])
    others = [name for name in known if name not in named]
    if share := given.get(SHARE):
        named += share_of(others, share)
    return named or others, Path(given.get(FOLDER) or "outputs/rehearsal"), overrides


def share_of(items: Sequence[T], text: str, key: str = SHARE) -> list[T]:
    """Returns the Nth of M parts of `items` for a text N/M; 9/8 is 1/8. Raises ConfigError, with `key`."""
    number, _, count = text.partition("/")
    if not (_NUMBER.fullmatch(number) and _NUMBER.fullmatch(count)):
        raise ConfigError([f"{key}{text} is not a share; write e.g. 1/3"])
    return list(items[(int(number) - 1) % int(count) :: int(count)])


def _rehearse(name: str, overrides: Sequence[str], folder: Path) -> bool:
    # Returns whether all parts ran.
    from bapo_lightning.tools.rehearsal.script import write_script
    from bapo_lightning.tools.rehearsal.steps import Rehearsal, table

    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    with displayed_phases():
        rehearsal = Rehearsal(write_script(name, overrides, folder), folder)
        has_run = rehearsal.perform()
    (folder / "rehearsal.json").write_text(json.dumps(rehearsal.record(), indent=2), encoding="utf-8")
    print(table(rehearsal.parts))
    print("\n".join(f"not here: {text}" for text in rehearsal.script.not_here), flush=True)
    return has_run


if __name__ == "__main__":
    end_with(main)
