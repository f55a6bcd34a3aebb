"""critic: train a critic of steps, which gives each step of a response its advantage.

    python -m bapo_lightning.algorithms.direct_advantage.command experiment=quickstart critic.to=models/critic

Heavy imports come after the configuration is composed, so that a misspelt option is reported at once.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence

from omegaconf import DictConfig

from bapo_lightning.configuration.compose import resolve
from bapo_lightning.configuration.early import refuse_early
from bapo_lightning.configuration.help import help_text
from bapo_lightning.report.progress.display import displayed_phases
from bapo_lightning.runs.command import end_with, hydra_command
from bapo_lightning.system.phases import phase

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # see cli.train
HELP = (
    "critic",
    'critic EXP=quickstart TO=models/critic ARGS="critic.split=1 critic.epochs=4"',
    "Trains the critic of algorithm=direct_advantage.",
)


def with_critic(arguments: Sequence[str]) -> list[str]:
    """Returns the arguments with the keys of the critic as additions to a run's configuration."""
    return [f"+{text}" if text.startswith("critic.") else text for text in arguments]


@hydra_command("train", lambda: help_text(*HELP), with_critic)
def main(config: DictConfig) -> None:
    """Samples, trains, saves."""
    plain, start = resolve(config), time.monotonic()
    refuse_early({key: node for key, node in plain.items() if key != "critic"})
    with displayed_phases():
        with phase("loading libraries"):
            from bapo_lightning.algorithms.direct_advantage.make import make_critic

        folder = make_critic(plain)
    print(f"{folder} was made in {time.monotonic() - start:.0f} s; train with it:")
    print(
        f"  make train EXP={config.name} "
        f'ARGS="algorithm=direct_advantage algorithm.stages.step_advantages.critic={folder}"'
    )


if __name__ == "__main__":
    end_with(main)
