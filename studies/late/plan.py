"""Settings of the audit, `studies/conf/maps/late.yaml` and the command line."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

from annotated_types import Ge, Gt, Le, MinLen

from bapo_lightning.configuration.sections import Section
from bapo_lightning.configuration.targets import Target
from bapo_lightning.system.values import NonNegative, Positive
from studies.commands import typed
from studies.late.rules import Action

KIND = "late"  # `kind` of the file, which is not a map of training runs
Few = Annotated[int, Ge(2), Le(1000)]
Quantity = Literal[
    "age", "waste", "length_ratio", "difficulty", "reward", "hardest", "reward_at_time", "pace"
]


class LateRule(Section):
    label: str
    action: Action


class LateWorld(Section):
    """Lengths of answers, and the speed of generation."""

    label: str
    hard: Positive = 1.0  # mean length in the hardest contexts, in those of the easiest
    key: Positive = 1.0  # mean length of an answer that takes the key, in those of the others
    spread: NonNegative = 1.0  # standard deviation of the logarithm of a length, all else equal
    throughput: Positive = 1.25  # answers generated while an update trains one batch, in batches


class LateClaim(Section):
    """A claim about a rule in some worlds, written down before the first run."""

    name: str
    claim: str
    quantity: Quantity
    rule: str
    against: str | float  # another rule or a number
    expected: Literal["more", "less", "equal"]
    worlds: Annotated[list[str], MinLen(1)]


class LateConfig(Section):
    kind: Literal["late"]
    output: Annotated[str, MinLen(1)]
    publish: Annotated[str, MinLen(1)] | None
    seeds: Few
    first_seed: Annotated[int, Ge(0)]
    num_updates: Few
    problems_per_update: Few
    group_size: Few
    learning_rate: Annotated[float, Gt(0), Le(1)]
    common: dict[str, Any]
    world: Target
    easiest: Annotated[float, Gt(0), Le(1)]
    longest: Annotated[float, Gt(1)]
    bound: Few
    bounds: list[Few]
    matters: dict[Quantity, float]
    rules: Annotated[dict[str, LateRule], MinLen(1)]
    worlds: Annotated[dict[str, LateWorld], MinLen(1)]
    claims: list[LateClaim]

    @property
    def places(self) -> list[tuple[str, int]]:
        """Every world at `bound`, and the first one at all `bounds`."""
        first = next(iter(self.worlds))
        more = [(first, bound) for bound in self.bounds if bound != self.bound]
        return [*((name, self.bound) for name in self.worlds), *more]

    def problems(self) -> Iterator[str]:
        for claim in self.claims:
            yield from (
                f"claims: {claim.name} names {each}, which is none of rules"
                for each in (claim.rule, claim.against)
                if isinstance(each, str) and each not in self.rules
            )
            if claim.quantity not in self.matters:
                yield f"matters has no {claim.quantity}, which the claim {claim.name} is about"
            for each in claim.worlds:
                if each not in self.worlds:
                    yield f"claims: {claim.name} names {each}, which is none of worlds"


def read_late(plain: Mapping[str, Any]) -> LateConfig:
    """The typed settings. Raises ConfigError for faults."""
    return typed(LateConfig, plain)
