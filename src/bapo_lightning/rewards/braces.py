"""Balanced braces of LaTeX."""

from __future__ import annotations

import re
import sys

_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)


def closing_brace(text: str, start: int, end: int = sys.maxsize) -> int | None:
    r"""Index of the brace that closes the one right before `start`; None when `text[:end]` ends first. `\{`
    and `\}` do not count.
    """
    depth = 1
    for brace in _BRACE.finditer(text, start, end):
        depth += {"{": 1, "}": -1}.get(brace.group(), 0)
        if depth == 0:
            return brace.start()
    return None
