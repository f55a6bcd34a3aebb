"""Settings of the atlas, `studies/conf/maps/bias.yaml` and the command line."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from annotated_types import Ge, Gt, Le, MinLen
from pydantic import Field

from bapo_lightning.configuration.sections import Section
from bapo_lightning.configuration.targets import Target
from bapo_lightning.system.errors import ConfigError
from bapo_lightning.system.values import Count, CountOrZero, Share
from studies.commands import typed

KIND = "atlas"  # `kind` of the file, which is not a map of training runs
OTHERS = "others"  # `against`: the best of all other methods
Starts = Annotated[int, Ge(2), Le(1000)]
Rate = Annotated[float, Gt(0)]
Ages = Annotated[list[CountOrZero], MinLen(1)]
Quantity = Literal["cosine", "error"]
Expected = Literal["more", "less", "equal", "not more"]


class AtlasMethod(Section):
    label: str
    family: str
    set: dict[str, Any]
    entry: Share | float = 1.0  # share of the batch's age that it had when it entered training


class AtlasWorld(Section):
    world: Target
    rates: Annotated[list[Rate], MinLen(1)]
    moments: dict[str, CountOrZero]  # name -> updates before the behaviour policy
    pace: Rate  # of these updates


class Headline(Section):
    world: str
    rate: Rate
    moment: str


class AtlasClaim(Section):
    """A claim about a method in some cells, written down before the first run."""

    name: str
    claim: str
    quantity: Quantity
    method: str
    against: str | float  # a method, `others`, or a number
    expected: Expected
    ages: Ages
    batches: list[Count] = Field(default_factory=list)
    world: str | None = None  # None: the headline's, as for the next two
    rate: Rate | None = None
    moment: str | None = None


@dataclass(frozen=True)
class Place:
    """A path of exact ascent: the behaviour policy is at its beginning, the policy some updates further."""

    world: str
    rate: float
    moment: str

    @property
    def name(self) -> str:
        return f"{self.world}-rate={self.rate:g}-{self.moment}"


class AtlasConfig(Section):
    kind: Literal["atlas"]
    output: Annotated[str, MinLen(1)]
    publish: Annotated[str, MinLen(1)] | None
    seeds: Starts
    group_size: Annotated[int, Ge(2), Le(1000)]
    ages: Ages
    batches: Annotated[list[Count], MinLen(1)]
    replicates: Annotated[int, Ge(2), Le(1000)]
    headline: Headline
    matters: float
    only: list[str] | None
    claims: list[AtlasClaim]
    families: dict[str, str]
    methods: dict[str, AtlasMethod]
    left_out: dict[str, list[str]]
    own: dict[str, AtlasMethod]
    worlds: dict[str, AtlasWorld]

    @property
    def head(self) -> Place:
        return Place(self.headline.world, self.headline.rate, self.headline.moment)

    @property
    def places(self) -> list[Place]:
        return [
            Place(name, rate, moment)
            for name, entry in self.worlds.items()
            for rate in entry.rates
            for moment in entry.moments
        ]

    def place_of(self, claim: AtlasClaim) -> Place:
        head = self.head
        return Place(claim.world or head.world, claim.rate or head.rate, claim.moment or head.moment)

    def problems(self) -> Iterator[str]:
        if 0 not in self.ages or self.ages != sorted({*self.ages}):
            yield f"ages={self.ages} must ascend from 0, where each method's scale is measured"
        if self.head not in self.places:
            yield "headline is none of worlds, their rates and their moments"
        for name, method in (self.methods | self.own).items():
            if method.family not in self.families:
                yield f"methods.{name}.family={method.family} is none of {', '.join(self.families)}"
            if not 0 <= method.entry <= 1:
                yield f"methods.{name}.entry={method.entry} is no share; write a number from 0 to 1"
        for claim in self.claims:
            if self.place_of(claim) not in self.places:
                yield f"claims: {claim.name} is about no world, rate and moment of this map"
            if not {*claim.ages} <= {*self.ages} or not {*claim.batches} <= {*self.batches}:
                yield f"claims: {claim.name} names ages or batches that are not measured"
            if (claim.quantity == "error") != bool(claim.batches):
                yield f"claims: {claim.name} must name batches for an error, and none for a cosine"
            yield from (
                f"claims: {claim.name} names {each}, which is none of methods"
                for each in (claim.method, claim.against)
                if isinstance(each, str) and each not in (OTHERS, *self.methods)
            )


def read_atlas(plain: Mapping[str, Any]) -> AtlasConfig:
    """The typed settings. Raises ConfigError for faults."""
    config = typed(AtlasConfig, plain)
    return config if config.only is None else with_only(config, config.only)


def with_only(config: AtlasConfig, only: Sequence[str]) -> AtlasConfig:
    """Returns the settings with these methods, and with the claims about them alone."""
    if unknown := [name for name in only if name not in config.methods]:
        raise ConfigError([f"only names {', '.join(unknown)}; write some of {', '.join(config.methods)}"])
    methods = {name: entry for name, entry in config.methods.items() if name in only}
    claims = [
        claim
        for claim in config.claims
        if claim.method in only and (not isinstance(claim.against, str) or claim.against in (OTHERS, *only))
    ]
    return config.model_copy(update={"methods": methods, "own": {}, "claims": claims})
