"""Decides whose log-probs a server gives: the folder's, an older one's, a mixture's, or neither's."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property

import numpy as np
from scipy.optimize import minimize_scalar
from torch import Tensor

from bapo_lightning.system.phases import phase
from bapo_lightning.tools.probe.judge import FLOOR, LEAST_FACTOR, USUAL_FACTOR, Gap, Position, gaps, position
from bapo_lightning.tools.probe.layout import Mask, Numbers, TokenLayout
from bapo_lightning.tools.probe.weights import EXACT, Weights

TEMPERATURES = (0.1, 10.0)
# Nats, mean: if log-probs moved by less, rounded weights may be the same.
SMALLEST_CHANGE = 1e-5


class ProbeVerdict(StrEnum):
    """Result of a probe."""

    MATCHES = "matches"
    STALE = "stale"  # from another given folder
    PARTIAL = "partial"  # from a mixture
    PROCESSED = "processed"  # from these weights, but from another distribution
    UNDECIDED = "undecided"  # rounding hides which of two folders it is
    DIFFERS = "differs"


@dataclass(frozen=True)
class Diagnosis:
    """The verdict and its evidence."""

    verdict: ProbeVerdict
    reason: str  # a sentence
    dtype: str  # precision in which the server fits best
    gaps: Mapping[str, Mapping[str, Gap]]  # to the folder, by precision and by part of the tokens
    positions: Mapping[str, Position] = field(default_factory=dict)  # by the name of another folder


@dataclass
class Case:
    """One server's [N] log-probs, the folder that they should be from, and others that they may be from."""

    layout: TokenLayout
    server: Numbers
    weights: Weights
    others: Sequence[Weights]
    dtypes: Sequence[str]  # that the server may compute in, the finest first
    is_repeated: bool = False  # the server gave the same answer before the folder was made, to the last bit

    @cached_property
    def rounding(self) -> dict[str, Numbers]:
        """[N] the yardstick, by precision."""
        with phase("measuring rounding"):
            return {dtype: self.weights.rounding(self.layout, dtype) for dtype in self.dtypes}

    def gaps_to(self, weights: Weights) -> dict[str, dict[str, Gap]]:
        """Differences from a folder, by precision."""
        return {
            dtype: gaps(self.layout, self.server, weights.scores(self.layout, dtype), self.rounding[dtype])
            for dtype in self.dtypes
        }

    def diagnose(self) -> Diagnosis:
        """Compares with the folder first, then the others, then mixtures and other distributions."""
        if count := int(np.isnan(self.server).sum()):
            reason = f"{count} of its {len(self.server)} log-probs are not finite"
            return Diagnosis(ProbeVerdict.DIFFERS, reason, self.dtypes[-1], {})
        folder_gaps = self.gaps_to(self.weights)
        fitting = best_fit(folder_gaps)
        dtype = fitting or min(folder_gaps, key=lambda name: mean_of(folder_gaps[name]))
        scores = self.weights.scores(self.layout, dtype)
        positions = {
            other.name: position(self.layout, self.server, scores, other.scores(self.layout, dtype))
            for other in self.others
        }
        verdict, reason = self._fits(dtype, positions) if fitting else self._differs(folder_gaps[dtype])
        return Diagnosis(verdict, reason, dtype, folder_gaps, positions)

    def _fits(self, dtype: str, positions: Mapping[str, Position]) -> tuple[ProbeVerdict, str]:
        for other in self.others:
            place = positions[other.name]
            if place.apart == 0.0 or place.side == 0:
                continue
            if place.side == 1:
                return ProbeVerdict.STALE, f"it holds {other.name}, whose side it is on beyond rounding"
            if place.is_blurred and self.is_repeated and place.apart > SMALLEST_CHANGE:
                reason = f"it answers as before {self.weights.name} was made, to the last bit"
                return ProbeVerdict.STALE, reason
            if place.is_blurred:
                reason = (
                    f"rounding hides whether it holds this or {other.name}, which differ by a mean of "
                    f"{place.apart:.2g} nats; request more tokens, or start the server in float32"
                )
                return ProbeVerdict.UNDECIDED, reason
            if mixed := self._mixture(other.name, other.state, dtype):
                return ProbeVerdict.PARTIAL, mixed
            return ProbeVerdict.PARTIAL, f"it holds neither this nor {other.name}, but something between them"
        # For a server that rounds as coarsely it is about 1, and less for a finer one with other weights.
        away = np.abs(self.server - self.weights.scores(self.layout, dtype)).mean()
        share = float(away / max(self.rounding[dtype].mean(), FLOOR))
        is_distinguished = any(not place.is_blurred and place.apart for place in positions.values())
        if dtype != EXACT and share > USUAL_FACTOR and not is_distinguished:
            reason = (
                f"its differences are {share:.2f} times rounding of {dtype}, and right servers are at about "
                f"1; give the export before by --also, or start the server in float32"
            )
            return ProbeVerdict.UNDECIDED, reason
        if len(self.dtypes) > 1 and dtype != self.dtypes[0] and share < LEAST_FACTOR:
            reason = (
                f"its differences are far below rounding of {dtype} and above rounding of the next finer "
                f"precision; write --dtype {dtype} if that is the server's, which may be more exact than ours"
            )
            return ProbeVerdict.UNDECIDED, reason
        return ProbeVerdict.MATCHES, f"what is left is rounding of {dtype}"

    def _differs(self, folder_gaps: Mapping[str, Gap]) -> tuple[ProbeVerdict, str]:
        for other in self.others:
            if best_fit(self.gaps_to(other)):
                return ProbeVerdict.STALE, f"it holds {other.name}"
        coarsest = self.dtypes[-1]
        for other in self.others:
            if mixed := self._mixture(other.name, other.state, coarsest):
                return ProbeVerdict.PARTIAL, mixed
        if mixed := self._mixture("nothing: they were never loaded", {}, coarsest):
            return ProbeVerdict.PARTIAL, mixed
        if processed := self._other_distribution(folder_gaps, coarsest):
            return ProbeVerdict.PROCESSED, processed
        if "prompt" in folder_gaps and "sampled" in folder_gaps and folder_gaps["prompt"].fits:
            reason = (
                "it scores prompts as these weights do, and not what it samples: its prefix cache is of "
                "older weights, or it samples from another distribution (penalties, top_p, a bias)"
            )
            return ProbeVerdict.PROCESSED, reason
        return ProbeVerdict.DIFFERS, "it holds weights of none of the given folders"

    def _mixture(self, path: str, other: Mapping[str, Tensor], dtype: str) -> str | None:
        """Returns the sentence about a mixture that the server holds, nearer than either side of it."""
        nearest = nearest_mixture(self.weights, other, self.layout, self.server, dtype)
        if nearest is None:
            return None
        mixed = self.weights.mixed_scores(self.layout, dtype, other, nearest.names)
        fitting = gaps(self.layout, self.server, mixed, self.rounding[dtype])
        whole = self.weights.mixed_scores(self.layout, dtype, other, [*self.weights.state])
        sides = [self.weights.scores(self.layout, dtype), *[whole] * bool(other)]
        ends = [position(self.layout, self.server, side, mixed).side for side in sides]
        if all(each.fits for each in fitting.values()) and all(end == 1 for end in ends):
            return f"{nearest.text} of it are of {path}; the rest is of this folder"
        return None

    def _other_distribution(self, folder_gaps: Mapping[str, Gap], dtype: str) -> str | None:
        """Returns the sentence about a temperature at which these weights have the server's log-probs."""
        part = self.layout.first(SEARCHED)
        server = self.server[: len(part.places)]
        requested = {"prompt": self.layout.prompt_temperature, "sampled": self.layout.temperature}
        for name in (name for name in folder_gaps if not folder_gaps[name].fits):
            mask = part.is_sampled == (name == "sampled")

            def away(log: float, name: str = name, mask: Mask = mask) -> float:
                scores = self.weights.scores(part.at(name, float(np.exp(log))), dtype)
                return float(np.abs(scores - server)[mask].mean())

            with phase("trying temperatures"):
                bounds = tuple(np.log(TEMPERATURES))
                best = float(np.exp(minimize_scalar(away, bounds=bounds, method="bounded").x))
            layout = self.layout.at(name, best)
            tempered = gaps(layout, self.server, self.weights.scores(layout, dtype), self.rounding[dtype])
            if tempered[name].fits:
                return f"log-probs of {name} tokens are of temperature {best:.2f}, not {requested[name]:g}"
        return None


def best_fit(by_dtype: Mapping[str, Mapping[str, Gap]]) -> str | None:
    """The finest precision whose rounding explains all differences."""
    return next((name for name, parts in by_dtype.items() if all(gap.fits for gap in parts.values())), None)


def mean_of(parts: Mapping[str, Gap]) -> float:
    """Mean difference over all tokens, in nats."""
    count = sum(gap.num_tokens for gap in parts.values())
    return sum(gap.mean * gap.num_tokens for gap in parts.values()) / count


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
