"""`python -m bapo_lightning.cli.train experiment=quickstart algorithm=grpo`: the main job.

Heavy imports come after the configuration is composed, so that `--help` and a misspelt option answer at once.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any, cast

import hydra
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from bapo_lightning.cli.conf_dir import conf_dir
from bapo_lightning.cli.help import help_text
from bapo_lightning.cli.resume import run_to_continue
from bapo_lightning.errors import BapoLightningError, ConfigError

# Read by OpenMP when torch loads: threads that spin while they wait stop a small model as soon as anything else runs on the cores.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


OmegaConf.register_new_resolver("sum", lambda *terms: sum(terms))
OmegaConf.register_new_resolver("max", lambda *terms: max(terms))


@hydra.main(version_base="1.3", config_path=conf_dir(), config_name="train")
def main(config: DictConfig) -> None:
    """Check, build, train, report."""
    try:
        folder = run_to_continue(resolve(config))
        if folder is not None:
            config.run_folder = str(folder)  # other keys refer to it
        resolved = resolve(config)
        from bapo_lightning.cli.run import run

        run(resolved)
    except KeyboardInterrupt:  # after training began the run itself ends in order
        print("interrupted", file=sys.stderr)
        sys.exit(130)
    except BapoLightningError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(1)


def resolve(config: DictConfig) -> dict[str, Any]:
    """Plain values of a composed configuration. Raises ConfigError for a key without a value or a reference to nothing."""
    try:
        return cast(dict[str, Any], OmegaConf.to_container(config, resolve=True, throw_on_missing=True))
    except OmegaConfBaseException as error:
        raise ConfigError(
            [f"{error.full_key} cannot be resolved ({str(error.msg).splitlines()[0]}); write {error.full_key}=VALUE"]
        ) from None


if __name__ == "__main__":
    if {"--help", "-h"} & set(sys.argv[1:]):
        print(help_text(Path(conf_dir())))
    else:
        main()
