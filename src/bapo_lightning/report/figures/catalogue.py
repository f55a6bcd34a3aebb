"""`conf/figures.yaml` (which runs there are) and `conf/figure/*.yaml` (what is drawn from them, and what the
paper says of it), checked.

kinds x seeds -> runs -> a figure's kinds -> picture, verdicts on its claims
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from bapo_lightning.errors import ConfigError
from bapo_lightning.report.figures.values import VALUES

FIGURES = "sweeps/figures"  # below conf/
PROTOCOL = "protocol"  # the file of the runs that figures are drawn from
_FIGURE_KEYS = {"title", "paper", "draw", "kinds", "labels", "metrics", "series", "axis", "values", "claims"}
_DRAWINGS = ("curves", "shares", "tokens", "bars", "entropy_rule")


@dataclass(frozen=True)
class Kind:
    """Runs that differ in their seeds only."""

    label: str  # in legends
    overrides: dict[str, Any]


@dataclass(frozen=True)
class Protocol:
    """What all figures are drawn from."""

    kinds: dict[str, Kind]
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
    def kinds(self) -> tuple[str, ...]:
        """Kinds that it speaks of."""
        return tuple(kind for kind in (self.more, self.less, self.of) if kind is not None)


@dataclass(frozen=True)
class Figure:
    """One picture."""

    name: str
    title: str
    paper: str  # what the paper shows
    draw: str
    kinds: tuple[str, ...]
    claims: tuple[Claim, ...]
    labels: dict[str, str] = field(default_factory=dict)  # of kinds, where the protocol's are too long
    metrics: tuple[str, ...] = ()  # of curves
    series: dict[str, dict[str, str]] = field(
        default_factory=dict
    )  # of bars: label -> place on the axis -> kind
    axis: str = ""  # of bars: what the places are
    values: tuple[str, ...] = ()  # of bars


def read_protocol(conf: Path) -> Protocol:
    """The runs that figures are drawn from."""
    content = yaml.safe_load((conf / FIGURES / f"{PROTOCOL}.yaml").read_text(encoding="utf-8"))
    kinds = {name: Kind(kind["label"], kind["set"]) for name, kind in content["kinds"].items()}
    return Protocol(kinds, tuple(content["seeds"]), content["common"], content["parallel_runs"])


def figure_names(conf: Path) -> list[str]:
    """All figures, those of the paper by their numbers."""
    names = [path.stem for path in (conf / FIGURES).glob("*.yaml") if path.stem != PROTOCOL]
    return sorted(names, key=lambda name: (not name.isdigit(), int(name) if name.isdigit() else 0, name))


def read_figure(conf: Path, name: str, protocol: Protocol) -> Figure:
    """Raises ConfigError with all that is wrong with the figure's file, or when there is none."""
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
    drawn = content.get("kinds") or [kind for row in series.values() for kind in row.values()]
    kinds = tuple(dict.fromkeys([*drawn, *(kind for claim in claims for kind in claim.kinds)]))
    figure = Figure(
        name=name,
        title=content["title"],
        paper=content["paper"],
        draw=content["draw"],
        kinds=kinds,
        claims=claims,
        labels={kind: protocol.kinds[kind].label for kind in kinds if kind in protocol.kinds}
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
    known = ", ".join(protocol.kinds)
    found = [
        f"the kind {kind} is not in figures.yaml; write one of {known}"
        for kind in figure.kinds
        if kind not in protocol.kinds
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
