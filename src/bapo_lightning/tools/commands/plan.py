"""The needs of a run before it starts: `python -m bapo_lightning plan experiment=... plan.gpus=8`."""

from __future__ import annotations

from omegaconf import DictConfig

from bapo_lightning.configuration.compose import resolve
from bapo_lightning.configuration.early import refuse_early
from bapo_lightning.configuration.help import help_text
from bapo_lightning.plan.console import plan_text
from bapo_lightning.report.progress.display import folded, on_terminal
from bapo_lightning.report.progress.terminal import get_console
from bapo_lightning.runs.command import end_with, hydra_command

WILL_NOT_FIT = 3  # exit code
HELP = (
    "plan",
    "plan EXP=bapo_7b GPUS=8 GPU=h100_80gb",
    "Prints the memory, work and time that a run would need.",
)


@hydra_command("train", lambda: help_text(*HELP))
def main(config: DictConfig) -> int:
    """Prints the plan; the exit code is 3 if it does not fit."""
    plain = resolve(config)
    refuse_early(plain)
    from bapo_lightning.configuration.plan import plan_of
    from bapo_lightning.configuration.validate import validate

    run = validate(plain, "run")
    plan = plan_of(run)
    text = plan_text(plan, run.name)
    print(folded(text, get_console().width) if on_terminal() else text)
    return WILL_NOT_FIT if plan.problems else 0


if __name__ == "__main__":
    end_with(main)
