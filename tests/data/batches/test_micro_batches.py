import random

import pytest

from bapo_lightning.data.batches.layout import Layout
from bapo_lightning.data.batches.micro_batches import balanced_parts, rows_by_token_budget


def test_padded_rows_stand_together_by_length_within_the_budget_and_a_longer_row_stands_alone():
    assert rows_by_token_budget([3, 10, 4, 4, 30], token_budget=12) == [[4], [1], [2, 3, 0]]
    assert rows_by_token_budget([5], token_budget=1) == [[0]]


def test_padded_parts_are_even_instead_of_full_ones_and_a_small_rest():
    assert rows_by_token_budget([10] * 9, token_budget=80) == [[0, 1, 2, 3, 4], [5, 6, 7, 8]]
    assert rows_by_token_budget([8, 8, 4, 4, 4, 4], token_budget=24) == [[0, 1], [2, 3, 4, 5]]


def test_one_padded_part_holds_the_longest_rows_first():
    assert rows_by_token_budget([3, 10, 4], token_budget=30) == [[1, 2, 0]]


def test_packed_parts_count_real_tokens_and_are_balanced():
    assert rows_by_token_budget([8, 7, 6, 5, 4], 20, Layout.PACKED) == [[1, 3, 4], [0, 2]]  # 16 and 14
    assert rows_by_token_budget([30, 1, 1, 1], 4, Layout.PACKED) == [[0], [1, 2, 3]]
    assert rows_by_token_budget([1, 30, 9], 40, Layout.PACKED) == [[0, 1, 2]]


def test_packed_parts_that_cannot_be_as_few_as_the_tokens_allow_are_one_more():
    # 18 tokens would fit into 2.
    assert sorted(rows_by_token_budget([6, 6, 6], 10, Layout.PACKED)) == [[0], [1], [2]]


def test_rows_of_one_prompt_stand_together_as_far_as_the_budget_allows():
    split = lambda prompts: rows_by_token_budget([5, 5, 5, 5, 5, 5], 15, Layout.SHARED, prompts)  # noqa: E731
    assert sorted(split([0, 1, 0, 1, 0, 1])) == [[0, 2, 4], [1, 3, 5]]
    assert sorted(split([0, 0, 0, 0, 1, 1])) == [[0, 1, 2], [3, 4, 5]]


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
        assert (
            len(part) == 1 or (len(taken) * max(taken) if layout is Layout.PADDED else sum(taken)) <= budget
        )


def test_packing_a_wide_spread_of_lengths_needs_fewer_micro_batches_of_even_size():
    generator = random.Random(0)
    lengths = [int(generator.lognormvariate(6, 1)) for _ in range(256)]
    padded, packed = (
        rows_by_token_budget(lengths, 8192, layout) for layout in (Layout.PADDED, Layout.PACKED)
    )
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
