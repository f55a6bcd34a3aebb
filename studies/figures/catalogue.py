"""Reads and checks `studies/conf/figures/`: the runs of the protocol, pictures, and the claims of the paper.

variants x seeds -> runs -> a figure's variants -> picture, verdicts on its claims
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import yaml

from bapo_lightning.system.errors import ConfigError
from studies import CONF
from studies.figures.values import VALUES

FOLDER = CONF / "figures"
PROTOCOL = "protocol"  # the file of the runs that figures are drawn from
_DRAWINGS = ("curves", "bounds", "shares", "tokens", "bars", "entropy_rule")


@dataclass(frozen=True)
class Variant:
    """Runs that differ only in their seeds."""

    label: str  # in legends
    overrides: dict[str, Any]


@dataclass(frozen=True)
class FigureProtocol:
    variants: dict[str, Variant]
    seeds: tuple[int, ...]
    common: dict[str, Any]  # overrides of all runs
    parallel_runs: int | None


@dataclass(frozen=True)
class Claim:
    """An assertion of the paper: `more` above `less` seed by seed, the two alike, or the mean of `of` above
    or below a number.
    """

    says: str
    value: str  # a name of `values.VALUES`
    more: str | None = None
    less: str | None = None
    times: float = 1.0  # as much as `less`, that `more` has at least
    within: float | None = None  # difference below which `more` and `less` are alike
    spread: bool = False  # judges each seed's distance from the median over seeds (Brown and Forsythe 1974)
    of: str | None = None
    above: float | None = None
    below: float | None = None


@dataclass(frozen=True)
class Figure:
    name: str
    title: str
    paper: str  # what the paper shows
    draw: str
    variants: Sequence[str]
    claims: Sequence[Claim]
    labels: dict[str, str]  # of variants
    metrics: Sequence[str] = ()  # of curves, also below bounds
    series: dict[str, dict[str, str]] = field(default_factory=dict)  # of bars: label -> group -> variant
    axis: str = ""  # of bars: label of the groups
    values: Sequence[str] = ()  # of bars


_FIGURE_KEYS = {item.name for item in fields(Figure)} - {"name"}


def read_protocol(folder: Path = FOLDER) -> FigureProtocol:
    content = yaml.safe_load((folder / f"{PROTOCOL}.yaml").read_text(encoding="utf-8"))
    variants = {
        name: Variant(variant["label"], variant["set"]) for name, variant in content["variants"].items()
    }
    return FigureProtocol(variants, tuple(content["seeds"]), content["common"], content["parallel_runs"])


def figure_names(folder: Path = FOLDER) -> list[str]:
    names = [path.stem for path in folder.glob("*.yaml") if path.stem != PROTOCOL]
    return sorted(names, key=lambda name: (not name.isdigit(), int(name) if name.isdigit() else 0, name))


def read_figure(name: str, protocol: FigureProtocol, folder: Path = FOLDER) -> Figure:
    """Reads and checks the file of a figure."""
    if name not in figure_names(folder):
        raise ConfigError(
            [f"figure={name} is no figure; write one of {', '.join(figure_names(folder))} (FIG=2 with make)"]
        )
    path = folder / f"{name}.yaml"
    content = yaml.safe_load(path.read_text(encoding="utf-8"))
    if unknown := sorted(set(content) - _FIGURE_KEYS):
        raise ConfigError(
            [f"{path}: {', '.join(unknown)} means nothing; write {', '.join(sorted(_FIGURE_KEYS))}"]
        )
    claims = [Claim(**claim) for claim in content["claims"]]
    drawn = content.get("variants") or [
        variant for row in content.get("series", {}).values() for variant in row.values()
    ]
    claimed = [variant for claim in claims for variant in (claim.more, claim.less, claim.of) if variant]
    variants = list(dict.fromkeys([*drawn, *claimed]))
    # A figure's own labels stand where the protocol's are too long.
    labels = {name: variant.label for name, variant in protocol.variants.items()} | content.get("labels", {})
    figure = Figure(**content | {"name": name, "variants": variants, "claims": claims, "labels": labels})
    if problems := [f"{path}: {problem}" for problem in _problems(figure, protocol)]:
        raise ConfigError(problems)
    return figure


def _problems(figure: Figure, protocol: FigureProtocol) -> Iterator[str]:
    for variant in figure.variants:
        if variant not in protocol.variants:
            known = ", ".join(protocol.variants)
            yield f"the variant {variant} is not in protocol.yaml; write one of {known}"
    for value in sorted({claim.value for claim in figure.claims} | set(figure.values)):
        if value not in VALUES:
            yield f"the value {value} does not exist; write one of {', '.join(VALUES)}"
    if figure.draw not in _DRAWINGS:
        yield f"draw: {figure.draw} does not exist; write one of {', '.join(_DRAWINGS)}"
    for claim in figure.claims:
        names = ("more", "less", "of", "above", "below")
        given = {name for name in names if getattr(claim, name) is not None}
        is_pair = {"more", "less"} <= given and "of" not in given
        if claim.within is not None and (not is_pair or not claim.within > 0):
            yield f"the claim {claim.says!r}: `within` is a positive difference of `more` and `less`"
        if not is_pair and given not in ({"of", "above"}, {"of", "below"}):
            yield (
                f"the claim {claim.says!r} must name `more` and `less`, or `of` and one of `above` and "
                "`below`"
            )
