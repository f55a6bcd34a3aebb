"""Algorithms of conf/algorithm as the parts of an update."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from omegaconf import DictConfig, OmegaConf
from scripts.doc_tables import names as names

from bapo_lightning.configuration.conf_dir import conf_dir
from bapo_lightning.configuration.hydra_versions import BASE
from bapo_lightning.configuration.targets import Target
from bapo_lightning.modules.algorithm import Algorithm

LONGEST_RESPONSE = 20  # tokens; some weigh a response by it
FOLDER = Path(conf_dir(), "algorithm")


def method(name: str, overrides: tuple[str, ...] = ()) -> Algorithm:
    """Returns an algorithm without rules and stages, under its own options, or others: Hydra's overrides of
    its file.
    """
    config = composed("algorithm", name, overrides)
    return Algorithm(*(made(config[part]) for part in ("advantages", "objective", "bounds", "weighting")))


@cache
def composed(group: str, name: str, overrides: tuple[str, ...] = ()) -> DictConfig:
    """Returns a file of a group of conf/, which may refer to the longest response."""
    with initialize_config_dir(str(Path(conf_dir(), group)), **BASE):
        parts = {group: compose(name, list(overrides)), "scale": {"max_new_tokens": LONGEST_RESPONSE}}
    return OmegaConf.create(parts)[group]


def made(node: DictConfig | None) -> Any:
    """Returns what a node with a `_target_` makes; None for any other."""
    plain = OmegaConf.to_container(node, resolve=True) if node is not None else None
    return Target(plain).make() if isinstance(plain, Mapping) else None
