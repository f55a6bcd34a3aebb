import random

import pytest

from bapo_lightning.data.batches.model_input import Layout, balanced_parts, rows_by_token_budget


@pytest.mark.parametrize(("layout", "lengths", "budget", "parts"), [
    ("padded", [3, 10, 4, 4, 30], 12, [[4], [1], [2, 3, 0]]),  # by length; a longer row stands alone
    ("padded", [5], 1, [[0]]),
    ("padded", [3, 10, 4], 30, [[1, 2, 0]]),
    ("padded", [10] * 9, 80, [[0, 1, 2, 3, 4], [5, 6, 7, 8]]),  # even, without a small rest
    ("padded", [8, 8, 4, 4, 4, 4], 24, [[0, 1], [2, 3, 4, 5]]),
    ("packed", [8, 7, 6, 5, 4], 20, [[1, 3, 4], [0, 2]]),  # 16 and 14
    ("packed", [30, 1, 1, 1], 4, [[0], [1, 2, 3]]),
    ("packed", [1, 30, 9], 40, [[0, 1, 2]]),
    ("packed", [6, 6, 6], 10, [[0], [1], [2]]),  # 18 tokens would fit into 2
])  # fmt: skip
def test_parts_by_hand(layout, lengths, budget, parts):
    assert rows_by_token_budget(lengths, budget, Layout(layout)) == parts


@pytest.mark.parametrize(("prompts", "parts"), [
    ([0, 1, 0, 1, 0, 1], [[0, 2, 4], [1, 3, 5]]), ([0, 0, 0, 0, 1, 1], [[0, 1, 2], [3, 4, 5]]),
])  # fmt: skip
def test_rows_of_one_prompt_stand_together_as_far_as_the_budget_allows(prompts, parts):
    assert sorted(rows_by_token_budget([5] * 6, 15, Layout.SHARED, prompts)) == parts


@pytest.mark.parametrize("layout", Layout)
@pytest.mark.parametrize("seed", range(20))
def test_every_row_stands_in_exactly_one_part_within_the_budget(layout, seed):
    generator = random.Random(seed)
    lengths = [generator.randint(1, 60) for _ in range(generator.randint(1, 80))]
    budget = generator.randint(1, 400)
    parts = rows_by_token_budget(lengths, budget, layout, [generator.randint(0, 9) for _ in lengths])
    assert sorted(row for part in parts for row in part) == list(range(len(lengths)))
    for part in parts:
        taken = [lengths[row] for row in part]
        size = len(taken) * max(taken) if layout is Layout.PADDED else sum(taken)
        assert len(part) == 1 or size <= budget


def test_packing_a_wide_spread_of_lengths_needs_fewer_micro_batches_of_even_size():
    generator = random.Random(0)
    lengths = [int(generator.lognormvariate(6, 1)) for _ in range(256)]
    layouts = (Layout.PADDED, Layout.PACKED)
    padded, packed = (rows_by_token_budget(lengths, 8192, layout) for layout in layouts)
    sizes = [sum(lengths[row] for row in part) for part in packed]
    assert (len(padded), len(packed)) == (24, 21)  # 21 is the least that the tokens need
    assert max(sizes) <= 1.01 * min(sizes)


def test_mixed_parts_hold_long_and_short_rows_within_the_budget_that_padding_costs():
    lengths = [40] * 8 + [10] * 8
    parts = rows_by_token_budget(lengths, 160, mixed=True)
    assert sorted(row for part in parts for row in part) == list(range(16))
    assert all(len(part) * max(lengths[row] for row in part) <= 160 for part in parts)
    assert all({lengths[row] for row in part} == {10, 40} for part in parts)
    assert [len({lengths[row] for row in part}) for part in rows_by_token_budget(lengths, 160)] == [1, 1, 1]


def totals(costs, parts):
    return [sum(costs[item] for item in part) for part in parts]


def test_a_known_split():
    costs = [8, 7, 6, 5, 4]
    # The largest differencing method's; the best would be 15 and 15.
    assert sorted(totals(costs, balanced_parts(costs, 2))) == [14, 16]
    assert totals([4, 4, 4, 4], balanced_parts([4, 4, 4, 4], 2)) == [8, 8]
    assert balanced_parts([3, 5], 3) == [[1], [0], []] and balanced_parts([], 2) == [[], []]
    with pytest.raises(ValueError, match="num_parts must be at least 1, got 0"):
        balanced_parts([1], 0)


@pytest.mark.parametrize("seed", range(20))
def test_every_item_is_in_one_part_and_no_part_exceeds_the_mean_by_more_than_one_item(seed):
    rng = random.Random(seed)
    costs = [rng.randrange(1, 1000) for _ in range(rng.randrange(1, 60))]
    num_parts = rng.randrange(1, 9)
    parts = balanced_parts(costs, num_parts)
    assert sorted(item for part in parts for item in part) == list(range(len(costs)))
    assert len(parts) == num_parts
    assert max(totals(costs, parts)) <= sum(costs) / num_parts + max(costs)
