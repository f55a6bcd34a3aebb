"""Text of `--help`: usage of a command, and choices, each with the first line of its file."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from bapo_lightning.configuration.compose import SHARED
from bapo_lightning.configuration.conf_dir import choice_files, conf_dir

USAGE = """\
usage: python -m {module} {command}
       make {example}

{purpose}
"""
TRAINS = "Trains a policy and writes a run folder under outputs/."
TRAIN = ("train", 'train EXP=quickstart ARGS="algorithm=grpo seed=1 regime.epochs=4"', TRAINS)
KEYS = "[GROUP=CHOICE ...] [KEY=VALUE ...]"
MORE = """
  --cfg job --resolve   print the composed configuration, with every key that can be set
  -m KEY=A,B            several runs, compared at the end; sweep=NAME is such a choice of values
  --hydra-help          options of Hydra itself
"""
NOT_CHOSEN = ("simulate", "hydra")  # read by `make simulate`, and by Hydra
CHOSEN_BY_OTHERS = ("rollout/engine", "rollout/weight_sync")  # parts that the files of `rollout` choose
CHOSEN_AT = {"problem_set": "problem_set@data.train"}  # a group that is used in several places


def usage(command: str, example: str, purpose: str, module: str = "bapo_lightning") -> str:
    """The first lines of a command's help: its arguments, `make` with an example, what it does."""
    return USAGE.format(module=module, command=command, example=example, purpose=purpose)


def help_text(command: str = TRAIN[0], example: str = TRAIN[1], purpose: str = TRAIN[2]) -> str:
    """The help of a command that reads a run's configuration, with the choices of installed packages."""
    lines = [usage(f"{command} {KEYS}", example, f"{purpose} Groups and their choices:")]
    conf = Path(conf_dir())
    for folder in sorted(path for path in conf.rglob("*") if path.is_dir()):
        group = folder.relative_to(conf).as_posix()
        known = choice_files(group)
        files = [known[name] for name in sorted(known) if name not in SHARED]
        if group.partition("/")[0] in NOT_CHOSEN or group in CHOSEN_BY_OTHERS or not files:
            continue
        lines.append(f"  {CHOSEN_AT.get(group, group)}=")
        lines += choices(files)
    return "\n".join([*lines, MORE])


def choices(files: Iterable[Path]) -> list[str]:
    """A line for each of these files of `conf/`: its name and description."""
    return listed({file.stem: description(file) for file in files})


def listed(meanings: Mapping[str, str]) -> list[str]:
    """A line for each name, with its meaning next to it."""
    width = max(18, *map(len, meanings), 0)
    return [f"    {name:<{width}} {meaning}" for name, meaning in meanings.items()]


def description(file: Path) -> str:
    """The first comment of a YAML file that is not a directive to Hydra."""
    comments = (
        line.removeprefix("#").strip()
        for line in file.read_text(encoding="utf-8").splitlines()
        if line.startswith("#")
    )
    return next((comment for comment in comments if not comment.startswith("@package")), "")
