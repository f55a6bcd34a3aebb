"""Runs TRL's and verl's own losses, advantages and corrections beside ours, and prints a table for each;
part of `make check-zoo`.

    python -m tests.zoo.check_peers --peers trl verl

Each runs in an environment of its own (`make setup-trl`, `make setup-verl`), and is left out by name where
that is not there. The columns:

    difference    largest relative difference of a gradient, weight or advantage on the whole update (1e-6)
    in 2, in 5    how far the peer's gradient over so many micro-batches is from its own over one

Beside each stands `same`, or how the peer's code is known to differ. A difference that is not known fails,
and so does a known one that is not found.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table
from tests.zoo import peers
from tests.zoo.peer_cases import CASES
from tests.zoo.peers import Row


def add_option(parser: argparse.ArgumentParser) -> None:
    """Adds the choice of peers, all by default."""
    parser.add_argument("--peers", nargs="*", choices=sorted(CASES), default=sorted(CASES), metavar="PEER")


def show(names: Sequence[str], only: Sequence[str] | None = None) -> list[str]:
    """Compares and prints.

    Args:
        names: of peers.
        only: algorithms and corrections of ours; None: all.

    Returns:
        What failed.
    """
    failed = []
    for name in names:
        cases = [case for case in CASES[name] if only is None or case.ours in only]
        if not peers.python(name).exists():
            print(f"{name}: not compared; first: make setup-{name}")
        elif cases:
            with tempfile.TemporaryDirectory() as folder:
                try:
                    version, rows = peers.compare(name, cases, Path(folder))
                except RuntimeError as error:
                    print(error)
                    failed.append(name)
                    continue
            Console(width=None if sys.stdout.isatty() else 160).print(_table(f"{name} {version}", rows))
            failed += [f"{name}'s {row.case.name}" for row in rows if row.fails]
    if failed:
        print(f"not as it is known to be: {', '.join(failed)}")
    return failed


def _table(title: str, rows: Sequence[Row]) -> Table:
    table = Table(
        title, "ours", "difference", "", *(f"in {parts}" for parts in peers.PARTS[1:]), "of each micro-batch"
    )
    for row in rows:
        splits = [f"{value:.0e}" for value in row.splits.values()] or [""] * (len(peers.PARTS) - 1)
        kept = row.split_verdict if row.splits else ""
        table.add_row(row.case.name, row.case.ours, f"{row.difference:.0e}", row.verdict, *splits, kept)
    return table


def main() -> int:
    """Compares; returns 1 when a difference is not what it is known to be."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_option(parser)
    return 1 if show(parser.parse_args().peers) else 0


if __name__ == "__main__":
    sys.exit(main())
