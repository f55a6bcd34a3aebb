"""Verdicts in tables that were written by hand, from the numbers that stand in them.

    python -m studies.map.marks PAGE ...    writes **more**, **less** and *equal* again

A table has `<!-- marks: N seeds -->` before it. Its differences are compared as on all pages
(`report.paired`): a t-test for each interval, adjusted over all differences of the table (Holm).
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from bapo_lightning.report.intervals import Interval, t_quantile
from bapo_lightning.report.paired import EQUAL, EQUAL_WITHIN, LESS, MORE, holm, verdict_of

_TABLE = re.compile(r"(?<=<!-- marks: )([0-9]+)( seeds -->\n+)((?:\|.*\n)+)")
_DIFFERENCE = re.compile(r"([+-][0-9.]+) ± ([0-9.]+)(?: \*{1,2}(?:more|less|equal)\*{1,2})?")
_MARKS = {MORE: " **more**", LESS: " **less**", EQUAL: " *equal*"}


def marked(page: str) -> str:
    """Returns a page with the verdicts that follow from the differences in its marked tables."""
    return _TABLE.sub(lambda table: table[1] + table[2] + _marked_table(table[3], int(table[1])), page)


def _marked_table(table: str, seeds: int) -> str:
    from scipy.stats import t

    intervals = [Interval(float(mean), float(width), seeds) for mean, width in _DIFFERENCE.findall(table)]
    errors = [(each.half_width or 0.0) / t_quantile(seeds - 1) for each in intervals]
    tests = [
        float(2 * t.sf(abs(each.mean) / error, seeds - 1)) if each.is_testable else None
        for each, error in zip(intervals, errors, strict=True)
    ]
    verdicts = [verdict_of(*pair, EQUAL_WITHIN) for pair in zip(intervals, holm(tests), strict=True)]
    marks = iter(_MARKS.get(verdict, "") for verdict in verdicts)
    return _DIFFERENCE.sub(lambda cell: f"{cell[1]} ± {cell[2]}{next(marks)}", table)


def main(pages: list[str]) -> None:
    for page in map(Path, pages):
        page.write_text(marked(page.read_text()))


if __name__ == "__main__":
    main(sys.argv[1:])
