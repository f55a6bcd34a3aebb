"""Runs a sweep and makes one table: `make train ARGS="-m sweep=NAME"` with its own help."""

from __future__ import annotations

from omegaconf import DictConfig

from bapo_lightning.cli.train import run
from bapo_lightning.configuration.conf_dir import choice_files
from bapo_lightning.configuration.help import choices, usage
from bapo_lightning.runs.command import end_with, hydra_command
from bapo_lightning.tools.commands.multirun import with_sweeps


def help_text() -> str:
    """Returns the text of `--help`."""
    shown = usage(
        "sweep [sweep=NAME] [KEY=VALUE,VALUE ...]",
        'sweep SWEEP=baselines ARGS="seed=0,1"',
        "Trains all runs of a sweep, and compares them in one table. Sweeps:",
    )
    return "\n".join([shown, *choices(choice_files("sweep").values())])


@hydra_command("train", help_text, lambda arguments: with_sweeps([*arguments, "-m"]), code=2)
def main(config: DictConfig) -> int:
    """Runs the command; its exit code is 1 if a run failed, 2 if nothing could be started."""
    return run(config)


if __name__ == "__main__":
    end_with(main)
