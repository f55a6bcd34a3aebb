"""The cells of the map and the methods compared in them, from `conf/map.yaml` and the command line."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Annotated, Any

from annotated_types import Ge
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from bapo_lightning.configuration.conf_dir import conf_dir
from bapo_lightning.configuration.sections import Section
from bapo_lightning.configuration.targets import Target, target_problems
from bapo_lightning.configuration.validate import parse
from bapo_lightning.errors import ConfigError
from bapo_lightning.report.map.cells import Cell
from bapo_lightning.values import Count

PROTOCOL_AXES = ("learning_rate", "staleness")


class MethodEntry(Section):
    """An algorithm by its overrides."""

    label: str
    set: dict[str, Any]


class WorldEntry(Section):
    """A world and the axes of its cells."""

    world: Target
    axes: dict[str, list[int | float]]


class MapConfig(Section):
    """`conf/map.yaml`."""

    output: str
    processes: Count | None
    gate_seeds: Annotated[int, Ge(2)]
    seeds: Annotated[int, Ge(2)]
    num_updates: Count
    problems_per_update: Count
    group_size: Count
    micro_batches: Count
    measure_every: Count
    common: dict[str, Any]
    gate: list[str]
    controls: list[str]
    drawn: list[str]
    methods: dict[str, MethodEntry]
    worlds: dict[str, WorldEntry]

    @property
    def cells(self) -> list[Cell]:
        """Every combination of the axes, world by world."""
        found = []
        for name, entry in self.worlds.items():
            for values in product(*entry.axes.values()):
                chosen = dict(zip(entry.axes, values, strict=True))
                learning_rate, staleness = (chosen.pop(axis) for axis in PROTOCOL_AXES)
                found.append(Cell(name, learning_rate, int(staleness), tuple(chosen.items())))
        return found

    def problems(self) -> Iterator[str]:
        """Methods that are named exist; axes have values, and worlds take them as options."""
        for key in ("gate", "controls", "drawn"):
            for name in getattr(self, key):
                if name not in self.methods:
                    yield f"{key} names {name}, which is none of methods"
        for name, entry in self.worlds.items():
            path = f"worlds.{name}.axes"
            for axis in PROTOCOL_AXES:
                if axis not in entry.axes:
                    yield f"{path} has no {axis}; write {path}.{axis}=[...]"
            for axis, values in entry.axes.items():
                if not values:
                    yield f"{path}.{axis} is empty; write its values, e.g. {path}.{axis}=[8]"
            options = {axis: values[0] for axis, values in entry.axes.items() if values}
            options = {axis: value for axis, value in options.items() if axis not in PROTOCOL_AXES}
            yield from target_problems({**entry.world.node, **options}, f"worlds.{name}.world")


def read_map(arguments: Sequence[str]) -> MapConfig:
    """Reads the file and the command line (KEY=VALUE).

    Raises:
        ConfigError: with everything that is wrong.
    """
    unreadable = [text for text in arguments if "=" not in text]
    if unreadable:
        raise ConfigError([f"{text} cannot be read; write KEY=VALUE" for text in unreadable])
    shipped = OmegaConf.load(Path(conf_dir(), "map.yaml"))
    try:
        merged = OmegaConf.merge(shipped, OmegaConf.from_dotlist(list(arguments)))
    except OmegaConfBaseException as error:
        raise ConfigError([str(error).splitlines()[0]]) from None
    plain: Any = OmegaConf.to_container(merged)
    plain["methods"] = {name: entry for name, entry in plain["methods"].items() if entry is not None}
    config, problems = parse(MapConfig, plain)
    if config is None:
        raise ConfigError(problems)
    if found := list(config.problems()):
        raise ConfigError(found)
    return config
