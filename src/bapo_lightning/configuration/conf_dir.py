"""Where the configuration files are: beside an installed package, or at the top of a checkout."""

from __future__ import annotations

from pathlib import Path

from bapo_lightning.errors import ConfigError


def conf_dir() -> str:
    """Absolute path of `conf/`. Raises ConfigError when neither place has it."""
    package = Path(__file__).resolve().parents[1]
    for folder in (package / "conf", package.parents[1] / "conf"):
        if (folder / "train.yaml").is_file():
            return str(folder)
    places = f"neither in {package} nor in {package.parents[1]}"
    raise ConfigError([f"conf/train.yaml is {places}: install the package again"])
