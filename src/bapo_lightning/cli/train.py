"""`python -m bapo_lightning.cli.train experiment=quickstart algorithm=grpo`: the main job.

Heavy imports come after the configuration is composed, so that `--help` and a misspelt option answer at once.
"""

from __future__ import annotations

import sys
from typing import Any, cast

import hydra
from omegaconf import DictConfig, OmegaConf

from bapo_lightning.cli.conf_dir import conf_dir
from bapo_lightning.errors import BapoLightningError


@hydra.main(version_base="1.3", config_path=conf_dir(), config_name="train")
def main(config: DictConfig) -> None:
    """Check, build, train, report."""
    try:
        resolved = cast(dict[str, Any], OmegaConf.to_container(config, resolve=True, throw_on_missing=True))
        resolved.pop("hydra", None)
        from bapo_lightning.cli.run import run

        run(resolved)
    except BapoLightningError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    main()
