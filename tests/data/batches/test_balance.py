import random

import pytest

from bapo_lightning.data.batches.micro_batches import balanced_parts


def totals(costs: list[int], parts: list[list[int]]) -> list[int]:
    return [sum(costs[item] for item in part) for part in parts]


def test_a_known_split() -> None:
    costs = [8, 7, 6, 5, 4]
    # The largest differencing method's; the best would be 15 and 15.
    assert sorted(totals(costs, balanced_parts(costs, 2))) == [14, 16]
    assert totals([4, 4, 4, 4], balanced_parts([4, 4, 4, 4], 2)) == [8, 8]


@pytest.mark.parametrize("seed", range(20))
def test_every_item_is_in_one_part_and_no_part_exceeds_the_mean_by_more_than_one_item(seed: int) -> None:
    rng = random.Random(seed)
    costs = [rng.randrange(1, 1000) for _ in range(rng.randrange(1, 60))]
    num_parts = rng.randrange(1, 9)
    parts = balanced_parts(costs, num_parts)
    assert sorted(item for part in parts for item in part) == list(range(len(costs)))
    assert len(parts) == num_parts
    assert max(totals(costs, parts)) <= sum(costs) / num_parts + max(costs)


def test_fewer_items_than_parts_leave_parts_empty() -> None:
    assert balanced_parts([3, 5], 3) == [[1], [0], []]
    assert balanced_parts([], 2) == [[], []]


def test_no_parts_are_refused() -> None:
    with pytest.raises(ValueError, match="num_parts must be at least 1, got 0"):
        balanced_parts([1], 0)
