"""The best split of GPUs: `bapo-simulate experiment=bapo_32b simulate.gpus=256`."""

from __future__ import annotations

from collections.abc import Sequence

from omegaconf import DictConfig

from bapo_lightning.configuration.compose import resolve
from bapo_lightning.configuration.early import refuse_early
from bapo_lightning.configuration.help import help_text
from bapo_lightning.report.progress.display import displayed_phases
from bapo_lightning.runs.command import end_with, hydra_command
from bapo_lightning.system.phases import phase

HELP = (
    "simulate",
    'simulate EXP=bapo_32b GPUS=256 ARGS="simulate.max_ages=[3,7,11]"',
    "Simulates a run over splits of GPUs between trainer and fleet, bounds on age and lengths of a pass.",
)


def with_simulate(arguments: Sequence[str]) -> list[str]:
    """Returns the arguments with the keys of the simulation added to a run's configuration."""
    return ["+simulate=default", *arguments]


@hydra_command("train", lambda: help_text(*HELP), with_simulate)
def main(config: DictConfig) -> None:
    """Simulates, prints the table and the answer."""
    plain = resolve(config)
    refuse_early({key: node for key, node in plain.items() if key != "simulate"})
    with displayed_phases():
        with phase("loading libraries"):
            from bapo_lightning.extras.simulation.configured import simulate
            from bapo_lightning.extras.simulation.page import answer, console_table, law_line

        study, page = simulate(plain)
    print(console_table(study))
    print(law_line(study))
    print(answer(study))
    print(f"Page with pictures: {page}")


if __name__ == "__main__":
    end_with(main)
