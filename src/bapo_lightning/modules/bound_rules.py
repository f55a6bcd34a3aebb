"""Rules for the clipping bounds of an update: fixed numbers, or the search of Algorithm 1."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import isfinite
from typing import Annotated, Any, Literal, Protocol, TypeVar, runtime_checkable

import torch
from annotated_types import Ge
from torch import Tensor, nn
from typing_extensions import TypedDict  # pydantic reads that of typing from Python 3.12 only

from bapo_lightning.objectives.bounds import (
    BoundSearch,
    ContributionWeight,
    Kind,
    Measure,
    Order,
    bound_grid,
    contributions,
    search_bounds,
)
from bapo_lightning.objectives.token_table import TokenTable
from bapo_lightning.system.ranks.collectives import sum_over_ranks
from bapo_lightning.system.values import Advice

Part = TypeVar("Part")  # of an update: a micro-batch


@runtime_checkable
class BoundRule(Protocol):
    """Chooses the clipping bounds of every update. A custom object needs these four, and no base class."""

    @property
    def weight(self) -> ContributionWeight:
        """Weight of a token in the contributions that the search uses and monitors show."""

    @property
    def searches(self) -> bool:
        """Whether `choose` reads the tokens. A rule that does not saves a pass over them."""

    def scopes(self, micro_batches: Sequence[Part]) -> list[Sequence[Part]]:
        """Divides the update's micro-batches, in order, into parts that share their bounds."""

    def choose(self, tables: Sequence[TokenTable]) -> BoundSearch:
        """Returns bounds for one part. Every rank calls it with its own tokens, the tables of the part's
        micro-batches before the update, without the graph, and must get the same bounds; a rule that does not
        search gets no tables.
        """


class BoundRange(TypedDict):
    """Start, end and step of a searched bound; importance ratios."""

    start: float
    end: float
    step: float


class Bounds(TypedDict):
    """A pair of bounds; importance ratios."""

    low: float
    high: float


# exact: once before the first gradient, and once for it. guessed: once, under the bounds of the search
# before, and the samples that these misjudged once more; see `speculation`.
SearchMode = Literal["exact", "guessed"]
MOST_STEPS = 10_000  # of a grid: the search holds a number for each
GRID_ADVICE = Advice("must have start, end and step, all numbers, e.g. {start: 0.6, end: 0.9, step: 0.02}")
REST_ADVICE = Advice("must have low and high, e.g. {low: 0.8, high: 1.2}, or be null")


class FixedBounds(nn.Module):
    """The same bounds for every update, as in PPO, GRPO and DAPO."""

    searches = False
    weight: ContributionWeight = "rollout_prob"  # the paper's, which monitors use for contributions
    low: Tensor
    high: Tensor

    def __init__(self, low: float, high: float) -> None:
        """
        Args:
            low: importance ratio below which a negative token is clipped, for example 0.8 (not 0.2).
            high: importance ratio above which a positive token is clipped, for example 1.2.
        """
        super().__init__()
        self.register_buffer("low", torch.tensor(float(low)), persistent=False)
        self.register_buffer("high", torch.tensor(float(high)), persistent=False)

    @staticmethod
    def problems(options: Mapping[str, Any]) -> Iterator[str]:
        """Yields mistakes in options of the right types; each text begins with an option's name."""
        yield from _not_around_one("low", options["low"], "high", options["high"])

    def scopes(self, micro_batches: Sequence[Part]) -> list[Sequence[Part]]:
        """All micro-batches as one part."""
        return [micro_batches]

    def choose(self, tables: Sequence[TokenTable]) -> BoundSearch:
        """Returns the fixed bounds; there is no target to miss."""
        value = torch.full_like(self.low, float("nan"))
        return BoundSearch(self.low, self.high, value, met=torch.ones_like(value, dtype=torch.bool))


class AdaptiveBounds(nn.Module):
    """BAPO: the first bounds on Algorithm 1's path at which positives contribute at least the target."""

    searches = True
    lows: Tensor
    highs: Tensor
    past: Tensor  # curves of earlier updates, [H + L], float64; a checkpoint holds them

    def __init__(
        self,
        low: Annotated[BoundRange, GRID_ADVICE],
        high: Annotated[BoundRange, GRID_ADVICE],
        target: float,
        kind: Kind,
        order: Order,
        measure: Measure,
        weight: ContributionWeight,
        scope: Literal["minibatch", "microbatch"],
        rest: Annotated[Bounds | None, REST_ADVICE] = None,
        memory: Annotated[float, Ge(1)] = 1,
        search: SearchMode = "exact",
    ) -> None:
        """
        Args:
            low: start (a-), end (b-) and step (delta_2) of the lower bound.
            high: start (a+), end (b+) and step (delta_1) of the upper bound.
            target: rho_0, in the unit of `measure`.
            kind: contribution of a clipped token, see `objectives.bounds.contribution_curves`.
            order: bound that moves first.
            measure: positives / all, or positives / negatives.
            weight: weight of a token, see `contribution_weight`.
            scope: one search for the whole minibatch of an update, or one for each micro-batch as in the
                authors' code.
            rest: bounds of an update in which positives contribute enough already at the start of the path;
                None keeps that start, as in the paper.
            memory: updates over which contributions are averaged, exponentially: with each update past
                contributions count 1 - 1 / memory times as much. 1: only this update, as in the paper.
            search: passes of micro-batches that share their bounds, see `SearchMode`.
        """
        super().__init__()
        self.register_buffer("lows", bound_grid(**low), persistent=False)
        self.register_buffer("highs", bound_grid(**high), persistent=False)
        self.target = target
        self.kind: Kind = kind
        self.order: Order = order
        self.measure: Measure = measure
        self.weight: ContributionWeight = weight
        self.scope = scope
        self.mode: SearchMode = search
        self.rest = rest
        self.kept = 1 - 1 / memory  # share of the past kept at each update
        past = torch.zeros(len(self.highs) + len(self.lows), dtype=torch.float64)
        self.register_buffer("past", past, persistent=memory > 1)

    @staticmethod
    def problems(options: Mapping[str, Any]) -> Iterator[str]:
        """See `FixedBounds.problems`."""
        low, high, target = options["low"], options["high"], options["target"]
        yield from _grid_problems("low", low)
        yield from _grid_problems("high", high)
        if options["measure"] == "share" and not 0 < target < 1:
            yield (
                f"target={target} is not a share (measure=share); write a number between 0 and 1, e.g. 0.4"
            )
        elif target <= 0:
            yield f"target={target} is always met; write a positive number"
        yield from _not_around_one("low.end", low["end"], "high.start", high["start"])
        if (rest := options.get("rest")) is not None:
            yield from _not_around_one("rest.low", rest["low"], "rest.high", rest["high"])
        if options.get("memory", 1) > 1 and options["scope"] == "microbatch":
            yield (
                f"memory={options['memory']} averages over updates, but scope=microbatch searches several "
                "times in each; write memory=1 or scope=minibatch"
            )

    def scopes(self, micro_batches: Sequence[Part]) -> list[Sequence[Part]]:
        """All micro-batches as one part, or each as a separate part."""
        if self.scope == "minibatch":
            return [micro_batches]
        return [[micro_batch] for micro_batch in micro_batches]

    @property
    def ends_of_path(self) -> tuple[tuple[float, float], tuple[float, float]]:
        """Bounds (low, high) at which the search rests if the target is met, and at which it ends."""
        start, end = ((float(self.lows[place]), float(self.highs[place])) for place in (0, -1))
        return start if self.rest is None else (self.rest["low"], self.rest["high"]), end

    def choose(self, tables: Sequence[TokenTable]) -> BoundSearch:
        """Searches over the tokens of `tables` on all ranks, and remembers their contributions."""
        bounds, self.past = self.search(tables, self.past)
        return bounds

    @torch.no_grad()
    def search(self, tables: Sequence[TokenTable], past: Tensor) -> tuple[BoundSearch, Tensor]:
        """Returns the bounds, and the contributions to remember, [H + L].

        It takes one pass over the tokens and one collective, and the host does not wait.
        """
        sums = sum_over_ranks(torch.stack([self._sums(table) for table in tables]).sum(0))
        curves = sums[:-1]
        if self.kept:
            # An update that is not finite is skipped and must not be remembered.
            past = curves = torch.where(sums.isfinite().all(), self.kept * past + curves, past)
        positive, negative = curves.split([len(self.highs), len(self.lows)])
        bounds = search_bounds(
            positive, negative, self.lows, self.highs, self.target, self.order, self.measure
        )
        if self.rest is not None:
            rests = bounds.met & (bounds.low == self.lows[0]) & (bounds.high == self.highs[0])
            low = torch.where(rests, self.rest["low"], bounds.low)
            high = torch.where(rests, self.rest["high"], bounds.high)
            bounds = bounds._replace(low=low, high=high)  # `value` keeps the start's value
        return bounds, past

    def _sums(self, table: TokenTable) -> Tensor:
        """Returns contributions of a table, and the sum of its ratios, which shows NaN; [H + L + 1]."""
        curves = contributions(table, self.weight, self.lows, self.highs, self.kind)
        return torch.cat([*curves, table.ratio.sum(0, keepdim=True)])


def guesses(rule: BoundRule) -> bool:
    """Whether a rule lets its bounds be guessed before they are searched."""
    return rule.searches and getattr(rule, "mode", "exact") == "guessed"


def searches_each_micro_batch(rule: BoundRule) -> bool:
    """Whether every micro-batch gets separate bounds. Its lengths must then be mixed: wrong answers are often
    longer, and micro-batches sorted by length would have almost no positive tokens, or only these.
    """
    return isinstance(rule, AdaptiveBounds) and rule.scope == "microbatch"


def _grid_problems(name: str, grid: BoundRange) -> Iterator[str]:
    if grid.keys() != BoundRange.__annotations__.keys():
        yield f"{name} needs start, end and step, got {', '.join(grid)}; write only these three"
    elif not isfinite(grid["start"] + grid["end"] + grid["step"]):
        yield f"{name}={grid} must have finite numbers; write e.g. {{start: 0.6, end: 0.9, step: 0.02}}"
    elif grid["step"] <= 0:
        yield f"{name}.step={grid['step']} never reaches the end; write a positive number"
    elif grid["start"] > grid["end"]:
        yield (
            f"{name}.start={grid['start']} is beyond {name}.end={grid['end']}, and the search moves up; "
            "swap them"
        )
    elif (grid["end"] - grid["start"]) / grid["step"] > MOST_STEPS:
        yield (
            f"{name}={grid} has more than {MOST_STEPS} steps; write a larger {name}.step, or a nearer "
            f"{name}.end"
        )


def _not_around_one(low_name: str, low: float, high_name: str, high: float) -> Iterator[str]:
    if not 0 <= low < 1:
        yield (
            f"{low_name}={low} is not a lower bound: it is an importance ratio (not an epsilon) and must be "
            "in [0, 1); write e.g. 0.8"
        )
    if not high > 1:
        yield (
            f"{high_name}={high} is not an upper bound: it is an importance ratio (not an epsilon) and must "
            "be above 1; write e.g. 1.2"
        )
