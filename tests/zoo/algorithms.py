"""Algorithms of conf/algorithm as the parts of an update."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from omegaconf import DictConfig, OmegaConf
from torch import Tensor

from bapo_lightning.configuration.conf_dir import conf_dir
from bapo_lightning.configuration.targets import Target
from bapo_lightning.modules.bound_rules import BoundRule
from bapo_lightning.objectives.objective import Objective

LONGEST_RESPONSE = 20  # tokens; some weigh a response by it
FOLDER = Path(conf_dir(), "algorithm")


@dataclass(frozen=True)
class Method:
    """What of an algorithm acts within an update."""

    objective: Objective
    rule: BoundRule
    weighting: Callable[..., Tensor]


def names() -> list[str]:
    """Returns the names of all algorithms."""
    return sorted(path.stem for path in FOLDER.glob("*.yaml") if path.stem != "base")


def method(name: str, overrides: tuple[str, ...] = ()) -> Method:
    """Returns the parts of an algorithm under its own options, or others: Hydra's overrides of its file."""
    config = composed("algorithm", name, overrides)
    return Method(*(made(config[part]) for part in ("objective", "bounds", "weighting")))


@cache
def composed(group: str, name: str, overrides: tuple[str, ...] = ()) -> DictConfig:
    """Returns a file of a group of conf/, which may refer to the longest response."""
    with initialize_config_dir(str(Path(conf_dir(), group)), version_base="1.3"):
        parts = {group: compose(name, list(overrides)), "scale": {"max_new_tokens": LONGEST_RESPONSE}}
    return OmegaConf.create(parts)[group]


def made(node: DictConfig | None) -> Any:
    """Returns what a node with a `_target_` makes; None for any other."""
    plain = OmegaConf.to_container(node, resolve=True) if node is not None else None
    return Target(plain).make() if isinstance(plain, Mapping) else None
