"""What a run would need, before anything is started: `python -m bapo_lightning.cli.plan experiment=bapo_7b
plan.gpus=8`.
"""

from __future__ import annotations

import sys
from pathlib import Path

import hydra
from omegaconf import DictConfig

from bapo_lightning.configuration.compose import resolve
from bapo_lightning.configuration.conf_dir import conf_dir
from bapo_lightning.configuration.help import help_text
from bapo_lightning.errors import BapoLightningError
from bapo_lightning.plan.console import plan_text

WILL_NOT_FIT = 3  # exit code


@hydra.main(version_base="1.3", config_path=conf_dir(), config_name="train")
def main(config: DictConfig) -> None:
    """Print the plan; exit with 3 where it does not fit."""
    try:
        plain = resolve(config)
        from bapo_lightning.configuration.plan import plan_of
        from bapo_lightning.configuration.validate import read_run

        run = read_run(plain)
        plan = plan_of(run)
    except BapoLightningError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(1)
    print(plan_text(plan, run.name))
    if plan.problems:
        sys.exit(WILL_NOT_FIT)


if __name__ == "__main__":
    if {"--help", "-h"} & set(sys.argv[1:]):
        print(help_text(Path(conf_dir())))
    else:
        main()
