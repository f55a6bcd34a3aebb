"""Checks every algorithm of conf/algorithm against a closed-form gradient, and prints one table; `make
check-zoo`.

Each number is the largest relative difference of a gradient. The columns, with the most that they may show:

    reference     autograd from the closed form in tests/zoo/references_*.py, per token (1e-6)
    differences   autograd from finite differences, detached numbers frozen (1e-5)
    slopes        weight * slope * ratio under torch.vmap from autograd (1e-9)
    rows          rows that stand for several tokens, as in exact worlds, from single ones (1e-9)
    split         2 and 5 micro-batches from one, of all weights (1e-9)
    packing       a row without padding from padded rows (1e-9)
    ranks         two gloo ranks from one process (1e-9)
    at ratio 1    autograd from what it must be where all ratios are 1 (1e-9), and what that is

Then TRL's and verl's own losses, advantages and corrections run beside ours, each in its environment (`make
setup-trl`, `make setup-verl`), and are left out by name where that is not there:

    difference    largest relative difference of a gradient, weight or advantage on the whole update (1e-6)
    in 2, in 5    how far the peer's gradient over so many micro-batches is from its own over one

Beside each stands `same`, or how the peer's code is known to differ. A difference that is not known fails,
and so does a known one that is not found.

`--tests` takes checkouts of other projects, whose own tests then judge our code; see tests/zoo/suites.py.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.table import Table
from tests.zoo import algorithms, peers, reference, suites, updates
from tests.zoo.peer_cases import CASES
from tests.zoo.reference import references

SEEDS = (0, 1, 2)
LIMITS = {
    "reference": 1e-6, "differences": 1e-5, "slopes": 1e-9, "rows": 1e-9, "split": 1e-9, "packing": 1e-9,
    "ranks": 1e-9, "at ratio 1": 1e-9,
}  # fmt: skip


def checks(name: str) -> dict[str, float | str]:
    """The columns of an algorithm but for the ranks."""
    method, expected = algorithms.method(name), references()[name]
    return {
        "reference": max(reference.against_reference(method, expected, seed) for seed in SEEDS),
        "differences": max(reference.against_differences(method, seed) for seed in SEEDS),
        "slopes": reference.against_slopes(method, SEEDS[:2]),
        "rows": expected.rows or max(reference.over_merged_rows(method, seed) for seed in SEEDS),
        "split": updates.over_splits(method),
        "packing": updates.over_packing(method),
        "at ratio 1": reference.at_one(method, expected, SEEDS[0]),
    }


def too_far(found: dict[str, float | str]) -> list[str]:
    """The columns whose number is above its limit, or not a number."""
    return [name for name, value in found.items() if not isinstance(value, str) and not value <= LIMITS[name]]


def cell(value: float | str, column: str) -> str:
    if isinstance(value, str):
        return value
    return f"[red]{value:.0e}[/]" if too_far({column: value}) else f"{value:.0e}"


def main() -> int:
    """Prints the table; returns 1 when a number is too large, or an algorithm has no reference."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", choices=sorted(references()), metavar="ALGORITHM")
    parser.add_argument("--peers", nargs="*", choices=sorted(CASES), default=sorted(CASES), metavar="PEER")
    suites.add_checkouts(parser, "--tests")
    arguments = parser.parse_args()
    known = arguments.only or [name for name in algorithms.names() if name in references()]
    with tempfile.TemporaryDirectory() as folder:
        ranks = updates.over_ranks(known, Path(folder))
    rows = {name: {**checks(name), "ranks": ranks[name]} for name in known}
    table = Table("algorithm", *LIMITS, "which is")
    for name, found in rows.items():
        at_one = references()[name].at_one
        formula = "" if isinstance(at_one, str) else str(at_one.__doc__)
        table.add_row(name, *(cell(found[column], column) for column in LIMITS), formula)
    Console(width=None if sys.stdout.isatty() else 160).print(table)
    far = [f"{name}: {', '.join(columns)}" for name, found in rows.items() if (columns := too_far(found))]
    lacking = [name for name in algorithms.names() if name not in references()]
    print("\n".join(f"too far: {text}" for text in far) or "all numbers are within their limits")
    if lacking:
        print(f"without a reference: {', '.join(lacking)}")
    failed = peers.show(arguments.peers, arguments.only)
    failed += suites.show(arguments.tests)
    return 1 if far or lacking or failed else 0


if __name__ == "__main__":
    sys.exit(main())
