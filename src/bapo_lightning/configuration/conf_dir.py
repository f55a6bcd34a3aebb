"""Where the configuration files are, and what they can compute: `${max:8,${regime.minibatches}}`."""

from __future__ import annotations

from pathlib import Path

from omegaconf import OmegaConf

from bapo_lightning.errors import ConfigError

OmegaConf.register_new_resolver("max", max, replace=True)


def conf_dir() -> str:
    """Absolute path of `conf/`, which lies beside an installed package, or at the top of a checkout.

    Raises:
        ConfigError: neither place has it.
    """
    package = Path(__file__).resolve().parents[1]
    for folder in (package / "conf", package.parents[1] / "conf"):
        if (folder / "train.yaml").is_file():
            return str(folder)
    places = f"neither in {package} nor in {package.parents[1]}"
    raise ConfigError([f"conf/train.yaml is {places}: install the package again"])
