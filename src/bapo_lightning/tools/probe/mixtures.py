"""Finds servers that hold some layers of one folder and the rest of another, or of none."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from bapo_lightning.system.phases import phase
from bapo_lightning.tools.probe.layout import Numbers, TokenLayout
from bapo_lightning.tools.probe.weights import Weights

SEARCHED = 8  # sequences: the texts, and some random tokens


@dataclass(frozen=True, slots=True)
class StaleLayers:
    """Parts of a model that come from another folder than the rest."""

    text: str  # names of those parts
    names: frozenset[str]  # of their weights


def mixtures(groups: list[tuple[str, list[str]]]) -> Iterator[StaleLayers]:
    """Yields the states after a partial sync: only the first parts, or only one, are new or old."""
    count = len(groups)
    cuts = [set(range(cut, count)) for cut in range(1, count)]
    cuts += [set(range(cut)) for cut in range(2, count)]
    cuts += [{place} for place in range(count - 1)]  # the last one is a cut
    cuts += [set(range(count)) - {place} for place in range(1, count - 1)]
    for places in cuts:
        names = frozenset(name for place in places for name in groups[place][1])
        yield StaleLayers(_text([label for label, _ in groups], places), names)


def nearest_mixture(
    weights: Weights, other: Mapping[str, Tensor], layout: TokenLayout, server: Numbers, dtype: str
) -> StaleLayers | None:
    """Returns the mixture whose log-probs are nearest to the server's [N], by least squares over the first
    sequences; None if the other's weights do not match these in place.
    """
    if any(other[name].shape != weight.shape for name, weight in weights.state.items() if name in other):
        return None
    part = layout.first(SEARCHED)
    target = server[: len(part.places)]
    trials = list(mixtures(weights.groups()))
    with phase("trying mixtures", len(trials) * len(part.sequences)):
        squares = [
            np.square(weights.mixed_scores(part, dtype, other, each.names) - target).sum() for each in trials
        ]
    finite = [square if np.isfinite(square) else np.inf for square in squares]
    return trials[int(np.argmin(finite))] if trials else None


def _text(labels: list[str], places: set[int]) -> str:
    first, last = min(places), max(places)
    if len(places) == 1:
        return labels[first]
    if len(places) == last - first + 1:
        return f"{labels[first]} to {labels[last]}"
    (left_out,) = set(range(len(labels))) - places
    return f"everything but {labels[left_out]}"
