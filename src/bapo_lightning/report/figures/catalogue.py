"""Reads and checks `conf/figures.yaml` (the runs) and `conf/figure/*.yaml` (pictures of them, and the paper's
claims).

    variants x seeds -> runs -> a figure's variants -> picture, verdicts on its claims
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import yaml

from bapo_lightning.errors import ConfigError
from bapo_lightning.report.figures.values import VALUES

FIGURES = "sweeps/figures"  # below conf/
PROTOCOL = "protocol"  # the file of the runs that figures are drawn from
_DRAWINGS = ("curves", "shares", "tokens", "bars", "entropy_rule")


@dataclass(frozen=True)
class Variant:
    """Runs that differ only in their seeds."""

    label: str  # in legends
    overrides: dict[str, Any]


@dataclass(frozen=True)
class Protocol:
    """The runs that all figures are drawn from."""

    variants: dict[str, Variant]
    seeds: tuple[int, ...]
    common: dict[str, Any]  # overrides of all runs
    parallel_runs: int | None


@dataclass(frozen=True)
class Claim:
    """An ordering that the paper asserts: `more` above `less` seed by seed, or the mean of `of` above or
    below a number.
    """

    says: str
    value: str  # a name of `values.VALUES`
    more: str | None = None
    less: str | None = None
    of: str | None = None
    above: float | None = None
    below: float | None = None

    @property
    def variants(self) -> tuple[str, ...]:
        """Variants that it speaks of."""
        return tuple(variant for variant in (self.more, self.less, self.of) if variant is not None)


@dataclass(frozen=True)
class Figure:
    """One picture."""

    name: str
    title: str
    paper: str  # what the paper shows
    draw: str
    variants: tuple[str, ...]
    claims: tuple[Claim, ...]
    labels: dict[str, str] = field(default_factory=dict)  # of variants, where the protocol's are too long
    metrics: tuple[str, ...] = ()  # of curves
    series: dict[str, dict[str, str]] = field(default_factory=dict)  # of bars: label -> group -> variant
    axis: str = ""  # of bars: label of the groups
    values: tuple[str, ...] = ()  # of bars


_FIGURE_KEYS = {item.name for item in fields(Figure)} - {"name"}


def read_protocol(conf: Path) -> Protocol:
    """Reads the runs that figures are drawn from."""
    content = yaml.safe_load((conf / FIGURES / f"{PROTOCOL}.yaml").read_text(encoding="utf-8"))
    variants = {
        name: Variant(variant["label"], variant["set"]) for name, variant in content["variants"].items()
    }
    return Protocol(variants, tuple(content["seeds"]), content["common"], content["parallel_runs"])


def figure_names(conf: Path) -> list[str]:
    """Names of all figures; those of the paper first, by their numbers."""
    names = [path.stem for path in (conf / FIGURES).glob("*.yaml") if path.stem != PROTOCOL]
    return sorted(names, key=lambda name: (not name.isdigit(), int(name) if name.isdigit() else 0, name))


def read_figure(conf: Path, name: str, protocol: Protocol) -> Figure:
    """Reads and checks the file of a figure.

    Raises:
        ConfigError: there is no such file; or all that is wrong with it.
    """
    if name not in figure_names(conf):
        raise ConfigError(
            [f"figure={name} is no figure; write one of {', '.join(figure_names(conf))} (FIG=2 with make)"]
        )
    path = conf / FIGURES / f"{name}.yaml"
    content = yaml.safe_load(path.read_text(encoding="utf-8"))
    if unknown := sorted(set(content) - _FIGURE_KEYS):
        raise ConfigError(
            [f"{path}: {', '.join(unknown)} means nothing; write {', '.join(sorted(_FIGURE_KEYS))}"]
        )
    series = content.get("series", {})
    claims = tuple(Claim(**claim) for claim in content["claims"])
    drawn = content.get("variants") or [variant for row in series.values() for variant in row.values()]
    variants = tuple(dict.fromkeys([*drawn, *(variant for claim in claims for variant in claim.variants)]))
    figure = Figure(
        name=name,
        title=content["title"],
        paper=content["paper"],
        draw=content["draw"],
        variants=variants,
        claims=claims,
        labels={
            variant: protocol.variants[variant].label for variant in variants if variant in protocol.variants
        }
        | content.get("labels", {}),
        metrics=tuple(content.get("metrics", ())),
        series=series,
        axis=content.get("axis", ""),
        values=tuple(content.get("values", ())),
    )
    if problems := [f"{path}: {problem}" for problem in _problems(figure, protocol)]:
        raise ConfigError(problems)
    return figure


def _problems(figure: Figure, protocol: Protocol) -> Sequence[str]:
    known = ", ".join(protocol.variants)
    found = [
        f"the variant {variant} is not in figures.yaml; write one of {known}"
        for variant in figure.variants
        if variant not in protocol.variants
    ]
    wanted = {claim.value for claim in figure.claims} | set(figure.values)
    found += [
        f"the value {value} does not exist; write one of {', '.join(VALUES)}"
        for value in sorted(wanted - set(VALUES))
    ]
    if figure.draw not in _DRAWINGS:
        found.append(f"draw: {figure.draw} does not exist; write one of {', '.join(_DRAWINGS)}")
    for claim in figure.claims:
        is_pair = claim.more is not None and claim.less is not None and claim.of is None
        is_number = (
            claim.of is not None
            and (claim.above is None) != (claim.below is None)
            and claim.more is claim.less is None
        )
        if not (is_pair or is_number):
            found.append(
                f"the claim {claim.says!r} must name `more` and `less`, or `of` and one of `above` and "
                "`below`"
            )
    return found
