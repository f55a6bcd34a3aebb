"""Even division of work: over ranks, and over the micro-batches of a rank."""

from __future__ import annotations

import heapq
from collections.abc import Sequence


def balanced_parts(costs: Sequence[int], num_parts: int) -> list[list[int]]:
    """Splits items into parts of nearly equal total cost, by Karmarkar and Karp's largest differencing
    method.

    Args:
        costs: non-negative cost of each item.
        num_parts: K. Parts stay empty where there are fewer items than parts.

    Returns:
        K lists of item numbers, each ascending, the costliest part first. The same costs always give the same
        parts.

    Raises:
        ValueError: no part to split into.
    """
    if num_parts < 1:
        raise ValueError(f"num_parts must be at least 1, got {num_parts}")
    # An entry is a partial solution: its parts by descending cost. The two with the largest spread are
    # merged, largest part with smallest.
    heap: list[tuple[int, int, list[tuple[int, list[int]]]]] = []
    for item, cost in enumerate(costs):
        parts = [(cost, [item])] + [(0, []) for _ in range(num_parts - 1)]
        heap.append((-cost, item, parts))
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
