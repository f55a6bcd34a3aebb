"""All runs of a sweep, then one table: `make train ARGS="-m sweep=NAME"` with its own help."""

from __future__ import annotations

import sys

from omegaconf import DictConfig

from bapo_lightning.cli.command import hydra_command
from bapo_lightning.cli.multirun import with_sweeps
from bapo_lightning.cli.train import run
from bapo_lightning.configuration.conf_dir import choice_files
from bapo_lightning.configuration.help import choices, usage


def help_text() -> str:
    """Text of `--help`."""
    shown = usage(
        "sweep [sweep=NAME] [KEY=VALUE,VALUE ...]",
        'sweep SWEEP=baselines ARGS="seed=0,1"',
        "Trains all runs of a sweep, and compares them in one table. Sweeps:",
    )
    return "\n".join([shown, *choices(choice_files("sweep").values())])


@hydra_command("train", help_text, lambda arguments: with_sweeps([*arguments, "-m"]), code=2)
def main(config: DictConfig) -> int:
    """Runs the command; its exit code is 1 when a run failed, 2 when nothing could be started."""
    return run(config)


if __name__ == "__main__":
    sys.exit(main())
