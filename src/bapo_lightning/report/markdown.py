"""Tables in Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def markdown_table(heads: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """Returns a table in Markdown; cells are written by `str`."""
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)
