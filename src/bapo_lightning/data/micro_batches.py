"""Which samples pass through the model together: as few micro-batches as the token budget allows, none smaller than it must be."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil

from bapo_lightning.data.balance import balanced_parts


def rows_by_token_budget(lengths: Sequence[int], token_budget: int, packed: bool = False) -> list[list[int]]:
    """Partition rows into parts of about equal size within a token budget. A row beyond the budget stands alone.

    Args:
        lengths: tokens of each row.
        token_budget: largest number of tokens in a part. Padding counts unless rows are packed: rows times longest row.
        packed: rows have no padding, so any may stand together; otherwise rows of similar length do.

    Returns:
        Row numbers of each part. Padded: the longest rows first, throughout. Packed: the largest part first, its rows in ascending order.
    """
    if packed:
        return _packed_parts(lengths, token_budget)
    # Parts filled to the brim leave a small rest. The smallest budget that makes no more parts of them spreads it over all.
    most = len(_padded_parts(lengths, token_budget))
    enough, too_few = token_budget, 0
    while most > 1 and enough - too_few > 1:
        middle = (enough + too_few) // 2
        if len(_padded_parts(lengths, middle)) > most:
            too_few = middle
        else:
            enough = middle
    return _padded_parts(lengths, enough)


def _padded_parts(lengths: Sequence[int], token_budget: int) -> list[list[int]]:
    """Longest rows first, each part filled up: the fewest parts that neighbours in this order can make."""
    parts: list[list[int]] = []
    longest = 0
    for row in sorted(range(len(lengths)), key=lambda row: -lengths[row]):
        if not parts or (len(parts[-1]) + 1) * longest > token_budget:
            parts.append([])
            longest = lengths[row]
        parts[-1].append(row)
    return parts


def _packed_parts(lengths: Sequence[int], token_budget: int) -> list[list[int]]:
    """The fewest balanced parts within the budget; rows beyond it are set apart first."""
    alone = [[row] for row, length in enumerate(lengths) if length >= token_budget]
    rows = [row for row, length in enumerate(lengths) if length < token_budget]
    costs = [lengths[row] for row in rows]
    num_parts = ceil(sum(costs) / token_budget)
    while rows:
        parts = [[rows[item] for item in part] for part in balanced_parts(costs, num_parts)]
        if all(sum(lengths[row] for row in part) <= token_budget for part in parts):
            return alone + parts
        num_parts += 1
    return alone
