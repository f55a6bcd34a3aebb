"""The cells of a map and the methods compared in them, from `studies/conf/maps/` and the command line."""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from itertools import product
from typing import Annotated, Any, Literal

import yaml
from annotated_types import Ge, Le, MinLen
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import Field

from bapo_lightning.configuration.sections import FASTEST, Section
from bapo_lightning.configuration.targets import Target, target_problems
from bapo_lightning.configuration.wording import value_problem
from bapo_lightning.system.errors import ConfigError, first_line
from bapo_lightning.system.values import Name, Size, Workers
from studies import CONF
from studies.bias.plan import KIND, AtlasConfig, read_atlas
from studies.commands import typed
from studies.exact.enumerated import Tree
from studies.exact.world import ExactWorld
from studies.late.plan import KIND as LATE
from studies.late.plan import LateConfig, read_late
from studies.map.cells import FIRST_COMPARED, FRESH, MapCell
from studies.virtual_time import Durations

Seeds = Annotated[int, Ge(2), Le(FIRST_COMPARED)]
PROTOCOL_AXES = ("learning_rate", "staleness")
EXACT_AXES = ("epochs", "lag", "batch")  # of the protocol as well, in exact worlds; see `MapCell`


class MethodEntry(Section):
    label: str
    set: dict[str, Any]


class WorldEntry(Section):
    """A world and the axes of its cells: an exact one, or training runs of an experiment."""

    world: Target | None = None
    experiment: str | None = None
    axes: dict[str, list[int | float]]
    durations: Durations | None = None  # runs generate during training, in virtual time; None: in turns


class Hypothesis(Section):
    """A claim about pairs of methods in the cells of some worlds, written down before the first run."""

    name: str
    claim: str
    worlds: list[str]
    pairs: list[tuple[str, str]]
    expected: Literal["more", "equal", "less", "not less"]
    uses: tuple[int, int] | None = None  # epochs of the one and of the other; None: the same cell
    share: float | None = None  # of training at whose end the other is looked at, and the one at its own end
    where: dict[str, list[float]] = Field(default_factory=dict)  # values of axes; the others: all
    curve: str | None = None  # that the claim is about; None: the endpoint's
    matters: float | None = None  # of that curve


class CollapseClaim(Section):
    """A claim that more than half of the runs of some methods collapse, in cells of these axes."""

    name: str
    claim: str
    methods: list[str]
    where: dict[str, list[float]]


class LawClaim(Section):
    name: str
    claim: str
    method: str
    expected: float  # exponent


class ConstantClaim(Section):
    name: str
    claim: str
    pair: tuple[str, str]
    expected: Literal["more", "equal", "less"]


class VerdictConfig(Section):
    """What a study asks; see `studies.verdicts`."""

    endpoint: str
    matters: float  # a difference within it is equal
    curve: str = "reward"  # of the measurements
    at_end: bool = False  # the endpoint is the curve's last value, not its mean
    # More curves whose means are in the table of means: all of training, or the end of this share of it.
    shown: dict[str, float | None] = Field(default_factory=dict)
    hypotheses: list[Hypothesis] = Field(default_factory=list)
    collapses: list[CollapseClaim] = Field(default_factory=list)
    usable: float = 0.9  # share of the best reward at S = 1 that a usable rate must reach
    law_from: int = 8  # least staleness of the fitted exponent
    law: list[LawClaim] = Field(default_factory=list)
    constants: list[ConstantClaim] = Field(default_factory=list)


class MapConfig(Section):
    output: Annotated[str, MinLen(1)]
    kept: Annotated[str, MinLen(1)] | None = None  # file of the curves of runs that ended; see `KeptRuns`
    processes: Workers | None
    gate_seeds: Seeds
    seeds: Seeds
    num_updates: Size
    problems_per_update: Size
    group_size: Size
    micro_batches: Size
    measure_every: Size
    common: dict[str, Any]
    gate: list[str]
    controls: list[str]
    drawn: list[str]
    duels: list[tuple[str, str]] = Field(default_factory=list)
    only: list[str] | None = None
    verdict: VerdictConfig | None = None
    methods: dict[str, MethodEntry]
    worlds: dict[str, WorldEntry]

    @property
    def is_leaderboard(self) -> bool:
        """Whether every method is judged at its own learning rate, and not cell by cell."""
        return bool(self.duels)

    @property
    def cells(self) -> list[MapCell]:
        """Every combination of the axes, world by world."""
        grid = []
        for name, entry in self.worlds.items():
            for values in product(*entry.axes.values()):
                chosen = dict(zip(entry.axes, values, strict=True))
                learning_rate, staleness = (chosen.pop(axis) for axis in PROTOCOL_AXES)
                more = {axis: int(chosen.pop(axis)) for axis in EXACT_AXES if axis in chosen}
                grid.append(MapCell(name, learning_rate, int(staleness), tuple(chosen.items()), **more))
        return grid

    @property
    def needs_fresh(self) -> bool:
        """Whether anything is compared with data of the newest policy."""
        if self.verdict is None or any(cell.lag for cell in self.cells):
            return True
        return any(FRESH in pair for claim in self.verdict.hypotheses for pair in claim.pairs)

    def problems(self) -> Iterator[str]:
        for key in ("methods", "worlds"):
            if not getattr(self, key):
                yield f"{key} names none; leave it out, or write one at least"
            for name in getattr(self, key):
                if problem := value_problem(Name, "name", name):
                    yield f"{key}.{name} {problem}"
        for key in ("gate", "controls", "drawn"):
            for name in getattr(self, key):
                if name not in self.methods:
                    yield f"{key} names {name}, which is none of methods"
                elif name == next(iter(self.methods)):
                    yield f"{key} names {name}, the method that all others are compared with; leave it out"
        if self.measure_every > self.num_updates:
            yield (
                f"measure_every={self.measure_every} measures nothing of num_updates={self.num_updates}; "
                f"write measure_every={self.num_updates}, or less"
            )
        for name in {name for pair in self.duels for name in pair} - self.methods.keys():
            yield f"duels names {name}, which is none of methods"
        for name, entry in self.worlds.items():
            yield from self._world_problems(f"worlds.{name}", entry)
        if self.verdict is not None:
            yield from self._claim_problems(self.verdict)

    def _claim_problems(self, verdict: VerdictConfig) -> Iterator[str]:
        known: dict[str, list[tuple[str, list[str], list[str]]]] = {
            "hypotheses": [
                (claim.name, [name for pair in claim.pairs for name in pair], claim.worlds)
                for claim in verdict.hypotheses
            ],
            "collapses": [(each.name, each.methods, []) for each in verdict.collapses],
            "law": [(law.name, [law.method], []) for law in verdict.law],
            "constants": [(constant.name, [*constant.pair], []) for constant in verdict.constants],
        }
        for key, claims in known.items():
            for claim, methods, worlds in claims:
                for name in dict.fromkeys(name for name in methods if name not in (FRESH, *self.methods)):
                    yield f"verdict.{key}: {claim} names {name}, which is none of methods"
                for name in dict.fromkeys(name for name in worlds if name not in self.worlds):
                    yield f"verdict.{key}: {claim} names {name}, which is none of worlds"

    def _world_problems(self, path: str, entry: WorldEntry) -> Iterator[str]:
        if (entry.world is None) == (entry.experiment is None):
            yield f"{path} must have either world or experiment"
        for axis in PROTOCOL_AXES:
            if axis not in entry.axes:
                yield f"{path}.axes has no {axis}; write {path}.axes.{axis}=[...]"
        for axis, values in entry.axes.items():
            if not values:
                yield f"{path}.axes.{axis} is empty; write its values, e.g. {path}.axes.{axis}=[8]"
        for staleness in entry.axes.get("staleness", ()):
            if staleness < 1 or self.num_updates % staleness:
                yield (
                    f"{path}.axes.staleness={staleness} does not divide num_updates={self.num_updates}, and "
                    "runs make whole rollout batches; write another one"
                )
        for staleness, epochs in product(entry.axes.get("staleness", ()), entry.axes.get("epochs", ())):
            if staleness >= 1 and epochs >= 1 and self.num_updates % (staleness * epochs):
                yield (
                    f"{path}.axes.epochs={epochs} at staleness {staleness} does not divide "
                    f"num_updates={self.num_updates}, and runs make whole rollout batches; write another one"
                )
        for axis in EXACT_AXES:
            is_virtual = axis == "lag" and entry.durations is not None
            if axis in entry.axes and entry.world is None and not is_virtual:
                yield f"{path}.axes.{axis} is one of exact worlds; leave it out: runs use a new batch once"
            for value in entry.axes.get(axis, ()):
                if value != int(value) or value < (axis == "epochs"):
                    yield f"{path}.axes.{axis}={value} is no number of {axis}; write whole ones"
        if "batch" in entry.axes and {"epochs"} & entry.axes.keys() | {*entry.axes["staleness"]} - {1}:
            yield f"{path}.axes.batch is of worlds that use a batch once: write staleness=[1] and no epochs"
        for rate in entry.axes.get("learning_rate", ()):
            if not 0 < rate <= FASTEST:
                yield f"{path}.axes.learning_rate={rate} is no rate; write positive ones, at most {FASTEST:g}"
        if entry.world is None:
            return
        others = {
            axis: values for axis, values in entry.axes.items() if axis not in (*PROTOCOL_AXES, *EXACT_AXES)
        }
        given, kind = ({"starts": 1}, Tree) if "batch" in entry.axes else ({}, ExactWorld)
        for options in product(*others.values()):
            target = Target({**entry.world.node, **given, **dict(zip(others, options, strict=True))})
            problems = list(target_problems(target.node, f"{path}.world"))
            yield from problems
            if not problems:
                try:
                    target.make(kind)
                except ConfigError as error:
                    yield from (f"{path}.world: {text}" for text in error.problems)


def read_settings(arguments: Sequence[str]) -> MapConfig | AtlasConfig | LateConfig:
    """Reads the file that `map` names, the one that it extends, and the command line (KEY=VALUE)."""
    plain = plain_settings(arguments)
    if plain.get("kind") == LATE:
        return read_late(plain)
    return read_atlas(plain) if plain.get("kind") == KIND else _map_of(plain)


def read_map(arguments: Sequence[str]) -> MapConfig:
    """Reads the settings of a map of training runs."""
    return _map_of(plain_settings(arguments))


def plain_settings(arguments: Sequence[str]) -> dict[str, Any]:
    """Plain settings. Raises ConfigError for arguments that cannot be read."""
    unreadable = [text for text in arguments if "=" not in text]
    if unreadable:
        raise ConfigError([f"{text} cannot be read; write KEY=VALUE" for text in unreadable])
    chosen = [text.removeprefix("map=") for text in arguments if text.startswith("map=")]
    name = chosen[-1] if chosen else "exact"
    shipped = {path.stem: path for path in (CONF / "maps").glob("*.yaml")}
    if name not in shipped:
        raise ConfigError([f"map={name} is no map; write one of {', '.join(sorted(shipped))}"])
    settings = OmegaConf.load(shipped[name])
    assert isinstance(settings, DictConfig)
    extended = settings.pop("extends", None)
    merged = settings if extended is None else OmegaConf.merge(OmegaConf.load(shipped[extended]), settings)
    for text in arguments:
        try:
            if not text.startswith("map="):
                merged = OmegaConf.merge(merged, OmegaConf.from_dotlist([text]))
        except (OmegaConfBaseException, yaml.YAMLError, IndexError, UnicodeError) as error:
            fault = f"{text} cannot be read ({first_line(error)}); write KEY=VALUE in YAML"
            raise ConfigError([fault]) from None
    plain: Any = OmegaConf.to_container(merged)
    for group in ("methods", "worlds", "common"):
        if isinstance(plain.get(group), dict):
            plain[group] = {name: entry for name, entry in plain[group].items() if entry is not None}
    return dict(plain)


def _map_of(plain: dict[str, Any]) -> MapConfig:
    return typed(MapConfig, plain, with_chosen_methods)


def with_chosen_methods(config: MapConfig) -> MapConfig:
    """Returns the settings with the methods that `only` names, and the duels between them."""
    if config.only is None:
        return config
    if unknown := [name for name in config.only if name not in config.methods]:
        raise ConfigError([f"only names {', '.join(unknown)}; write some of {', '.join(config.methods)}"])
    methods = {name: entry for name, entry in config.methods.items() if name in config.only}
    duels = [pair for pair in config.duels if methods.keys() >= set(pair)]
    if config.duels and not duels:
        raise ConfigError([f"only leaves none of the duels; name both methods of one: {config.duels}"])
    verdict = config.verdict and with_claims_about(config.verdict, methods.keys())
    return config.model_copy(update={"methods": methods, "duels": duels, "verdict": verdict})


def with_claims_about(verdict: VerdictConfig, methods: Set[str]) -> VerdictConfig:
    """Returns the claims without what they say of other methods."""
    known = {FRESH, *methods}
    pairs = {claim.name: [pair for pair in claim.pairs if known >= {*pair}] for claim in verdict.hypotheses}
    claims = {
        "hypotheses": [
            claim.model_copy(update={"pairs": pairs[claim.name]})
            for claim in verdict.hypotheses
            if pairs[claim.name]
        ],
        "collapses": [each for each in verdict.collapses if methods >= {*each.methods}],
        "law": [law for law in verdict.law if law.method in methods],
        "constants": [constant for constant in verdict.constants if methods >= {*constant.pair}],
    }
    if not any(claims.values()):
        raise ConfigError(["only leaves none of the claims; name both methods of one"])
    return verdict.model_copy(update=claims)
