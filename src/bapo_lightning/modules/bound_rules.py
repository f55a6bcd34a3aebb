"""Where the clipping bounds of an update come from: fixed numbers, or the search of Algorithm 1."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import isfinite
from typing import Annotated, Any, Literal, Protocol, TypeVar, runtime_checkable

import torch
from annotated_types import Ge
from torch import Tensor, nn
from typing_extensions import TypedDict  # pydantic reads that of typing from Python 3.12 only

from bapo_lightning.modules.contributions import ContributionWeight, contributions
from bapo_lightning.objectives.bounds import BoundSearch, Kind, Measure, Order, bound_grid, search_bounds
from bapo_lightning.objectives.token_table import TokenTable
from bapo_lightning.ranks.collectives import sum_over_ranks
from bapo_lightning.values import Advice

Part = TypeVar("Part")  # of an update: a micro-batch
SAME_BOUND = 1e-6  # bounds that differ by less are the same: those of finished runs are decimal numbers


@runtime_checkable
class BoundRule(Protocol):
    """Chooses the clipping bounds of every update. An object of your own needs these four, no base class."""

    @property
    def weight(self) -> ContributionWeight:
        """Weight of a token in the contributions that are searched, and that monitors show."""

    @property
    def searches(self) -> bool:
        """Whether `choose` looks at the tokens. A rule that does not saves a pass over them."""

    def scopes(self, micro_batches: Sequence[Part]) -> list[Sequence[Part]]:
        """The update's micro-batches, in order, in parts that share their bounds."""

    def choose(self, tables: Sequence[TokenTable]) -> BoundSearch:
        """Bounds for one part. Every rank calls it, with its own tokens, and must get the same bounds.

        Args:
            tables: tables of the part's micro-batches before the update, without the graph; none for a
                rule that does not search.
        """


class BoundRange(TypedDict):
    """Where a searched bound starts and ends, and how far a step moves it; importance ratios."""

    start: float
    end: float
    step: float


class Bounds(TypedDict):
    """A pair of bounds; importance ratios."""

    low: float
    high: float


# exact: once before the first gradient, and once for it. speculative: once, under guessed bounds, and those
# that the guess misjudged once more. bitwise: likewise, but all of them once more, with the bits of exact.
SearchMode = Literal["exact", "speculative", "bitwise"]
MOST_STEPS = 10_000  # of a grid: the search holds a number for each
GRID_ADVICE = Advice("must have start, end and step, all numbers, e.g. {start: 0.6, end: 0.9, step: 0.02}")
REST_ADVICE = Advice("must have low and high, e.g. {low: 0.8, high: 1.2}, or be null")


class FixedBounds(nn.Module):
    """The same bounds for every update, as in PPO, GRPO and DAPO."""

    searches = False
    weight: ContributionWeight = "rollout_prob"  # the paper's, by which monitors show contributions
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
        """Yields what is wrong with options of the right types; each text begins with an option's name."""
        yield from _not_around_one("low", options["low"], "high", options["high"])

    def scopes(self, micro_batches: Sequence[Part]) -> list[Sequence[Part]]:
        """All micro-batches as one part."""
        return [micro_batches]

    def choose(self, tables: Sequence[TokenTable]) -> BoundSearch:
        """The fixed bounds; there is no target to miss."""
        value = torch.full_like(self.low, float("nan"))
        return BoundSearch(self.low, self.high, value, met=torch.ones_like(value, dtype=torch.bool))


class AdaptiveBounds(nn.Module):
    """BAPO: the first bounds on Algorithm 1's path at which positives contribute at least the target."""

    searches = True
    lows: Tensor
    highs: Tensor
    past: Tensor  # curves of the updates before, [H + L], float64; a checkpoint holds them

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
            rest: bounds of an update in which positives contribute enough at the start of the path already;
                None keeps that start, as in the paper.
            memory: updates over which contributions are averaged, exponentially: with each update those of
                the past count 1 - 1 / memory times as much. 1: this update alone, as in the paper.
            search: when micro-batches that share their bounds pass through the model, see `SearchMode`.
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
        self.kept = 1 - 1 / memory  # of the past, with each update
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
                f"target={target} is no share of a whole (measure=share); write a number between 0 and 1, "
                "e.g. 0.4"
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
        """All micro-batches as one part, or each on its own."""
        if self.scope == "minibatch":
            return [micro_batches]
        return [[micro_batch] for micro_batch in micro_batches]

    @property
    def ends_of_path(self) -> tuple[tuple[float, float], tuple[float, float]]:
        """Bounds (low, high) where the search rests when the target is met, and where it ends."""
        start, end = ((float(self.lows[place]), float(self.highs[place])) for place in (0, -1))
        return start if self.rest is None else (self.rest["low"], self.rest["high"]), end

    def choose(self, tables: Sequence[TokenTable]) -> BoundSearch:
        """Searches over the tokens of `tables` on all ranks, and remembers their contributions."""
        found, self.past = self.search(tables, self.past)
        return found

    @torch.no_grad()
    def search(self, tables: Sequence[TokenTable], past: Tensor) -> tuple[BoundSearch, Tensor]:
        """Returns the bounds, and the contributions to remember, [H + L].

        One pass over the tokens, one collective, and the host waits for nothing.
        """
        own = [
            torch.cat(contributions(table, self.weight, self.lows, self.highs, self.kind)) for table in tables
        ]
        curves = sum_over_ranks(torch.stack(own).sum(0))
        if self.kept:
            # An update that is not finite will be skipped, and must not be remembered.
            past = curves = torch.where(curves.isfinite().all(), self.kept * past + curves, past)
        positive, negative = curves.split([len(self.highs), len(self.lows)])
        found = search_bounds(
            positive, negative, self.lows, self.highs, self.target, self.order, self.measure
        )
        if self.rest is not None:
            rests = found.met & (found.low == self.lows[0]) & (found.high == self.highs[0])
            low = torch.where(rests, self.rest["low"], found.low)
            high = torch.where(rests, self.rest["high"], found.high)
            found = found._replace(low=low, high=high)  # `value` stays that of the start
        return found, past


def search_mode(rule: BoundRule) -> SearchMode:
    """How a rule searches; those of your own exactly, unless they have a `mode`."""
    return getattr(rule, "mode", "exact")


def searches_each_micro_batch(rule: BoundRule) -> bool:
    """Whether every micro-batch gets bounds of its own. Their lengths must then be mixed: wrong answers are
    often the longer ones, and micro-batches sorted by length would have next to no positive tokens, or only
    them.
    """
    return isinstance(rule, AdaptiveBounds) and rule.scope == "microbatch"


def whereabouts(rule: BoundRule, low: Tensor, high: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """Shares of the searches that stay at the start of their path and that run to its end, 0-dim; NaN where
    nothing was searched, or nothing was there to balance.

    Args:
        rule: rule that searched.
        low: lower bounds of N searches, [N].
        high: upper bounds, [N].
        value: positive contributions, [N]; NaN for a search with nothing to balance, which does not count.
    """
    if not isinstance(rule, AdaptiveBounds):
        return value.new_full((), torch.nan), value.new_full((), torch.nan)
    found = []
    for end_low, end_high in rule.ends_of_path:
        there = ((low - end_low).abs() < SAME_BOUND) & ((high - end_high).abs() < SAME_BOUND)
        found.append(torch.where(value.isnan(), torch.nan, there.float()).nanmean())
    return found[0], found[1]


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
            "exchange them"
        )
    elif (grid["end"] - grid["start"]) / grid["step"] > MOST_STEPS:
        yield (
            f"{name}={grid} has more than {MOST_STEPS} steps; write a larger {name}.step, or a nearer "
            f"{name}.end"
        )


def _not_around_one(low_name: str, low: float, high_name: str, high: float) -> Iterator[str]:
    if not 0 <= low < 1:
        yield (
            f"{low_name}={low} is no lower bound: it is an importance ratio (not an epsilon) and must be in "
            "[0, 1); write e.g. 0.8"
        )
    if not high > 1:
        yield (
            f"{high_name}={high} is no upper bound: it is an importance ratio (not an epsilon) and must be "
            "above 1; write e.g. 1.2"
        )
