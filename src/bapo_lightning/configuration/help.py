"""What `--help` prints: the choices of every configuration group, each with the first line of its file."""

from __future__ import annotations

from pathlib import Path

from bapo_lightning.configuration.spelling import SHARED

USAGE = """\
usage: python -m bapo_lightning.cli.train [GROUP=CHOICE ...] [KEY=VALUE ...]
       make train EXP=quickstart ARGS="algorithm=grpo seed=1 regime.epochs=4"

Trains a policy and writes a run folder under outputs/. Groups and their choices:
"""
MORE = """
  --cfg job --resolve   print the composed configuration, with every key that can be set
  -m KEY=A,B            one run after another (Hydra's multirun); `make sweep` runs several at a time
  --hydra-help          options of Hydra itself
"""
NOT_HYDRA = "sweeps"  # read by `make sweep` and `make figures`
CHOSEN_BY_OTHERS = ("rollout/engine", "rollout/weight_sync")  # parts that the files of `rollout` choose
CHOSEN_AT = {"problem_set": "problem_set@data.train"}  # a group that has several places


def help_text(conf: Path) -> str:
    """The help, read from the configuration files below `conf`."""
    lines = [USAGE]
    for folder in sorted(path for path in conf.rglob("*") if path.is_dir()):
        group = folder.relative_to(conf).as_posix()
        files = sorted(file for file in folder.glob("*.yaml") if file.stem not in SHARED)
        if group.partition("/")[0] == NOT_HYDRA or group in CHOSEN_BY_OTHERS or not files:
            continue
        lines.append(f"  {CHOSEN_AT.get(group, group)}=")
        lines += [f"    {file.stem:<18} {description(file)}" for file in files]
    return "\n".join([*lines, MORE])


def description(file: Path) -> str:
    """The first comment of a YAML file that is not a directive to Hydra."""
    comments = (
        line.removeprefix("#").strip()
        for line in file.read_text(encoding="utf-8").splitlines()
        if line.startswith("#")
    )
    return next((comment for comment in comments if not comment.startswith("@package")), "")
