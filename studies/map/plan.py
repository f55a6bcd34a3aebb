"""The cells of a map and the methods compared in them, from `studies/conf/maps/` and the command line."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from typing import Annotated, Any

from annotated_types import Ge
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import Field

from bapo_lightning.configuration.parse import parse
from bapo_lightning.configuration.sections import Section
from bapo_lightning.configuration.targets import Target, target_problems
from bapo_lightning.errors import ConfigError
from bapo_lightning.values import Count
from studies import CONF
from studies.map.cells import MapCell

PROTOCOL_AXES = ("learning_rate", "staleness")


class MethodEntry(Section):
    label: str
    set: dict[str, Any]


class WorldEntry(Section):
    """A world and the axes of its cells: an exact one, or training runs of an experiment."""

    world: Target | None = None
    experiment: str | None = None
    axes: dict[str, list[int | float]]


class MapConfig(Section):
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
    duels: list[tuple[str, str]] = Field(default_factory=list)
    methods: dict[str, MethodEntry]
    worlds: dict[str, WorldEntry]

    @property
    def is_leaderboard(self) -> bool:
        """Whether every method is judged at its own learning rate, and not cell by cell."""
        return bool(self.duels)

    @property
    def cells(self) -> list[MapCell]:
        """Every combination of the axes, world by world."""
        found = []
        for name, entry in self.worlds.items():
            for values in product(*entry.axes.values()):
                chosen = dict(zip(entry.axes, values, strict=True))
                learning_rate, staleness = (chosen.pop(axis) for axis in PROTOCOL_AXES)
                found.append(MapCell(name, learning_rate, int(staleness), tuple(chosen.items())))
        return found

    def problems(self) -> Iterator[str]:
        for key in ("gate", "controls", "drawn"):
            for name in getattr(self, key):
                if name not in self.methods:
                    yield f"{key} names {name}, which is none of methods"
        for name in {name for pair in self.duels for name in pair} - self.methods.keys():
            yield f"duels names {name}, which is none of methods"
        for name, entry in self.worlds.items():
            yield from self._world_problems(f"worlds.{name}", entry)

    def _world_problems(self, path: str, entry: WorldEntry) -> Iterator[str]:
        if (entry.world is None) == (entry.experiment is None):
            yield f"{path} must have either world or experiment"
        for axis in PROTOCOL_AXES:
            if axis not in entry.axes:
                yield f"{path}.axes has no {axis}; write {path}.axes.{axis}=[...]"
        for axis, values in entry.axes.items():
            if not values:
                yield f"{path}.axes.{axis} is empty; write its values, e.g. {path}.axes.{axis}=[8]"
        options = {axis: values[0] for axis, values in entry.axes.items() if values}
        options = {axis: value for axis, value in options.items() if axis not in PROTOCOL_AXES}
        if entry.world is not None:
            yield from target_problems({**entry.world.node, **options}, f"{path}.world")
            return
        for staleness in entry.axes.get("staleness", ()):
            if staleness < 1 or self.num_updates % staleness:
                yield (
                    f"{path}.axes.staleness={staleness} does not divide num_updates={self.num_updates}, and "
                    "runs make whole rollout batches; write another one"
                )


def read_map(arguments: Sequence[str]) -> MapConfig:
    """Reads the file that `map` names, the one that it extends, and the command line (KEY=VALUE)."""
    unreadable = [text for text in arguments if "=" not in text]
    if unreadable:
        raise ConfigError([f"{text} cannot be read; write KEY=VALUE" for text in unreadable])
    chosen = [text.removeprefix("map=") for text in arguments if text.startswith("map=")]
    name = chosen[-1] if chosen else "exact"
    shipped = {path.stem: path for path in (CONF / "maps").glob("*.yaml")}
    if name not in shipped:
        raise ConfigError([f"map={name} is no map; write one of {', '.join(sorted(shipped))}"])
    changes = OmegaConf.from_dotlist([text for text in arguments if not text.startswith("map=")])
    own = OmegaConf.load(shipped[name])
    assert isinstance(own, DictConfig)
    extended = own.pop("extends", None)
    files = [own] if extended is None else [OmegaConf.load(shipped[extended]), own]
    try:
        plain: Any = OmegaConf.to_container(OmegaConf.merge(*files, changes))
    except OmegaConfBaseException as error:
        raise ConfigError([str(error).splitlines()[0]]) from None
    for group in ("methods", "worlds", "common"):
        plain[group] = {name: entry for name, entry in plain[group].items() if entry is not None}
    config, problems = parse(MapConfig, chosen_methods(plain))
    if config is None:
        raise ConfigError(problems)
    if found := list(config.problems()):
        raise ConfigError(found)
    return config


def chosen_methods(plain: dict[str, Any]) -> dict[str, Any]:
    """Returns the settings with the methods that `only` names, and the duels between them."""
    only = plain.pop("only", None)
    if only is None:
        return plain
    if unknown := [str(name) for name in only if name not in plain["methods"]]:
        raise ConfigError([f"only names {', '.join(unknown)}; write some of {', '.join(plain['methods'])}"])
    methods = {name: entry for name, entry in plain["methods"].items() if name in only}
    duels = [pair for pair in plain.get("duels", []) if methods.keys() >= set(pair)]
    if plain.get("duels") and not duels:
        raise ConfigError([f"only leaves none of the duels; name both methods of one: {plain['duels']}"])
    return {**plain, "methods": methods, "duels": duels}
