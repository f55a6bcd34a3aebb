"""Even division of work: over ranks, and over as few micro-batches as the token budget allows."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from math import ceil

from bapo_lightning.data.batches.layout import Layout


def balanced_parts(costs: Sequence[int], num_parts: int) -> list[list[int]]:
    """Splits items of non-negative costs into K parts of nearly equal total cost, by Karmarkar and Karp's
    largest differencing method. Raises ValueError for K < 1.

    Returns K lists of item numbers, each ascending, the costliest part first, empty where there are fewer
    items. The same costs always give the same parts.
    """
    if num_parts < 1:
        raise ValueError(f"num_parts must be at least 1, got {num_parts}")
    # An entry is a partial solution: its parts by descending cost. The two with the largest spread are
    # merged, largest part with smallest.
    nothing: list[tuple[int, list[int]]] = [(0, [])] * (num_parts - 1)
    heap = [(-cost, item, [(cost, [item]), *nothing]) for item, cost in enumerate(costs)]
    heapq.heapify(heap)
    while len(heap) > 1:
        _, order, first = heapq.heappop(heap)
        _, _, second = heapq.heappop(heap)
        merged = [
            (cost + other, items + others)
            for (cost, items), (other, others) in zip(first, reversed(second), strict=True)
        ]
        merged.sort(key=lambda part: (-part[0], part[1]))
        heapq.heappush(heap, (merged[-1][0] - merged[0][0], order, merged))
    return [sorted(items) for _, items in heap[0][2]] if heap else [[] for _ in range(num_parts)]


def rows_by_token_budget(
    lengths: Sequence[int],
    token_budget: int,
    layout: Layout = Layout.PADDED,
    prompts: Sequence[int] = (),
    mixed: bool = False,
) -> list[list[int]]:
    """Partitions rows into parts of about equal size within a token budget. A row beyond it stands alone.

    Padding counts where there is any: rows times longest row. A shared prompt counts once for each row, as it
    does in attention. Rows without padding may stand together whatever their lengths; otherwise rows of
    similar length do, unless `mixed` is set, for more padding. Rows that share a prompt, by its number, stand
    together as far as they can.

    Returns the row numbers of each part. Padded and not mixed: the longest rows first, throughout. Otherwise
    the largest part first, its rows in ascending order.
    """
    if layout is Layout.SHARED:
        families = _families(lengths, token_budget, prompts)
        parts = _packed_parts([sum(lengths[row] for row in family) for family in families], token_budget)
        return [sorted(row for family in part for row in families[family]) for part in parts]
    if layout is Layout.PACKED:
        return _packed_parts(lengths, token_budget)
    if mixed:
        return _packed_parts(lengths, token_budget, size=lambda part: len(part) * max(part, default=0))
    # Parts filled to the brim leave a small rest. The smallest budget that makes no more parts of them
    # spreads it over all.
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


def _families(lengths: Sequence[int], token_budget: int, prompts: Sequence[int]) -> list[list[int]]:
    """Rows of the same prompt, as many together as the budget allows."""
    families: list[list[int]] = []
    filling: dict[
        int, tuple[list[int], int]
    ] = {}  # prompt -> its family that is not full, and the room in it
    for row, prompt in enumerate(prompts):
        family, room = filling.get(prompt, ([], 0))
        if lengths[row] > room:
            family, room = [], token_budget
            families.append(family)
        family.append(row)
        filling[prompt] = family, room - lengths[row]
    return families


def _packed_parts(
    lengths: Sequence[int], token_budget: int, size: Callable[[Sequence[int]], int] = sum
) -> list[list[int]]:
    """The fewest balanced parts within the budget; rows beyond it are set apart first."""
    alone = [[row] for row, length in enumerate(lengths) if length >= token_budget]
    rows = [row for row, length in enumerate(lengths) if length < token_budget]
    costs = [lengths[row] for row in rows]
    num_parts = ceil(sum(costs) / token_budget)
    while rows:
        parts = [[rows[item] for item in part] for part in balanced_parts(costs, num_parts)]
        if all(size([lengths[row] for row in part]) <= token_budget for part in parts):
            return alone + parts
        num_parts += 1
    return alone
