"""Time of one update's bound search: curves and search of this package against the while-loop of Algorithm 1.

    python bench/bound_search.py --tokens 1000000 --threads 2

The loop evaluates the two sums over all tokens at every trial and reads their quotient back to decide, like
the authors' code (which adds an all-reduce per trial). Both run on the same tokens, turn by turn, and must
choose the same bounds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, get_args

import torch
from annotated_types import Ge, Le
from measuring import Spread, bench_parser, in_turns, method, ratio, write_json
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from bapo_lightning.objectives.bounds import (
    Kind,
    bound_grid,
    contribution_curves,
    positive_contribution,
    search_bounds,
)
from bapo_lightning.runs.command import number_type

Tokens = tuple[Tensor, Tensor, Tensor, Tensor]  # ratio, advantage, mask, weight


class HostSyncs(TorchDispatchMode):
    """Counts how often the host reads a number back from the device."""

    count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += func.overloadpacket.__name__ in ("_local_scalar_dense", "item", "nonzero")
        return func(*args, **(kwargs or {}))


def trial(tokens: Tokens, low: float, high: float, kind: Kind) -> float:
    """Returns the positive share at one pair of bounds. The host waits at `.item()`."""
    ratio, advantage, mask, weight = tokens
    positive = advantage >= 0
    if kind == "surrogate":
        effective = torch.where(positive, ratio.clamp(max=high), ratio.clamp(min=low))
    else:
        effective = torch.where(positive, ratio * (ratio <= high), ratio * (ratio >= low))
    contribution = effective * advantage * weight * mask
    positive_sum = contribution.clamp(min=0).sum()
    negative_sum = -contribution.clamp(max=0).sum()
    return (positive_sum / (positive_sum + negative_sum)).item()


def while_loop(
    tokens: Tokens, lows: list[float], highs: list[float], target: float, kind: Kind
) -> tuple[int, int, int]:
    """Runs Algorithm 1. Returns the indices of the chosen bounds and the number of trials."""
    low = high = 0
    trials = 1
    while trial(tokens, lows[low], highs[high], kind) < target and low + 1 < len(lows):
        low, high = (low, high + 1) if high + 1 < len(highs) else (low + 1, high)
        trials += 1
    return low, high, trials


def curves_and_search(
    tokens: Tokens, lows: Tensor, highs: Tensor, target: float, kind: Kind
) -> tuple[Tensor, Tensor]:
    positive, negative = contribution_curves(*tokens, lows, highs, kind)
    bounds = search_bounds(positive, negative, lows, highs, target, "upper_first", "share")
    return bounds.low, bounds.high


def lognormal_tokens(count: int, spread: float) -> Tokens:
    """Returns random tokens: ratios exp(spread * normal), two fifths of the advantages positive, one token in
    ten masked, uniform behaviour probabilities.
    """
    generator = torch.Generator().manual_seed(0)
    ratio = torch.randn(count, generator=generator).mul(spread).exp()
    advantage = torch.rand(count, generator=generator) * torch.where(
        torch.rand(count, generator=generator) < 0.4, 1.0, -1.0
    )
    return (
        ratio,
        advantage,
        torch.rand(count, generator=generator) < 0.9,
        torch.rand(count, generator=generator),
    )


def targets(tokens: Tokens, lows: Tensor, highs: Tensor, kind: Kind) -> dict[str, float]:
    """Returns two targets: one inside a step of the second half of the upper bounds, where rounding changes
    nothing, and one that is never reached.
    """
    positive, negative = contribution_curves(*tokens, lows, highs, kind)
    share = positive_contribution(positive, negative[0], "share")[len(highs) // 2 :]
    step = int(share.diff().argmax())
    return {"mid path": share[step : step + 2].mean().item(), "full path": 1.0}


def host_syncs(work: Callable[[], object]) -> int:
    with HostSyncs() as syncs:
        work()
    return syncs.count


def compare(
    name: str, tokens: Tokens, lows: Tensor, highs: Tensor, target: float, kind: Kind, repeats: int
) -> dict[str, Spread]:
    """Times the loop and this package in alternation, prints and returns both; exits if they choose different
    bounds.
    """
    low_values, high_values = lows.tolist(), highs.tolist()

    def loop() -> tuple[int, int, int]:
        return while_loop(tokens, low_values, high_values, target, kind)

    def ours() -> tuple[Tensor, Tensor]:
        return curves_and_search(tokens, lows, highs, target, kind)

    low, high, trials = loop()
    expected, chosen = (low_values[low], high_values[high]), tuple(bound.item() for bound in ours())
    if chosen != expected:
        raise SystemExit(f"the loop chose {expected}, this package {chosen}")
    taken = {
        side: [turn.wall for turn in turns]
        for side, turns in in_turns({"loop": loop, "ours": ours}, repeats).items()
    }
    spreads = {side: Spread.of(seconds) for side, seconds in taken.items()} | {
        "times_faster": ratio(taken["loop"], taken["ours"])
    }
    print(
        f"{name}: {spreads['times_faster'].text(digits=1)} times faster, bounds ({chosen[0]:.2f}, "
        f"{chosen[1]:.2f})"
    )
    # Across ranks, the loop needs the two global sums at every trial, the curves only once.
    print(
        f"  while-loop      {spreads['loop'].text('ms', 1e3)}  {trials} trials, {host_syncs(loop)} host "
        f"syncs, {trials} collectives"
    )
    print(
        f"  curves + search {spreads['ours'].text('ms', 1e3)}  1 pass, {host_syncs(ours)} host syncs, 1 "
        "collective"
    )
    return spreads


def main() -> None:
    parser = bench_parser(__doc__, tokens=1000000, threads=2, repeats=11)
    parser.add_argument(
        "--spread",
        type=number_type(Annotated[float, Ge(0), Le(10)]),
        default=0.3,
        help="standard deviation of log r",
    )
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    tokens = lognormal_tokens(arguments.tokens, arguments.spread)
    lows, highs = bound_grid(0.6, 0.9, 0.02), bound_grid(1.2, 3.0, 0.05)
    print(f"{arguments.tokens} tokens; {method(arguments.repeats, 1, arguments.threads)}")
    cases = {}
    for kind in get_args(Kind):
        for case, target in targets(tokens, lows, highs, kind).items():
            name = f"{kind}, {case}"
            cases[name] = compare(name, tokens, lows, highs, target, kind, arguments.repeats)
    write_json(arguments.json, {"arguments": vars(arguments), "wall_seconds": cases})


if __name__ == "__main__":
    main()
