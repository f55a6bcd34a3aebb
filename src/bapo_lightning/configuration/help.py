"""What `--help` prints: the choices of every configuration group, each with the first line of its file."""

from __future__ import annotations

from pathlib import Path

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
SHARED = ("base",)  # files that others build on and that are no choice by themselves
CHOSEN_AT = {
    "problem_set": "problem_set@data.train",
    "prompt": "data/prompt",
}  # groups that fill a key deeper down
NOT_CHOSEN = ("bounds", "sweep", "transport")  # groups that other files choose from


def help_text(conf: Path) -> str:
    """The help, read from the configuration files below `conf`."""
    lines = [USAGE]
    for group in sorted(path for path in conf.iterdir() if path.is_dir() and path.name not in NOT_CHOSEN):
        lines.append(f"  {CHOSEN_AT.get(group.name, group.name)}=")
        files = sorted(file for file in group.glob("*.yaml") if file.stem not in SHARED)
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
