"""Which groups may enter training before an older one that is slow."""

import pytest

from bapo_lightning.data.rollouts.scheduler import StartOrder
from bapo_lightning.types import Group, Problem, WorkItem

PROBLEMS = {str(number): Problem(str(number), "", "") for number in range(8)}
ITEMS = [WorkItem(problem, 0) for problem in PROBLEMS.values()]


def order(window):
    made = StartOrder(window)
    made.add(ITEMS[:6])
    return made


def chosen(made, ready, running, count=9):
    groups = [Group(PROBLEMS[str(number)], ()) for number in ready]
    return [
        int(group.problem.id) for group in made.choose(groups, [ITEMS[number] for number in running], count)
    ]


@pytest.mark.parametrize(
    ("window", "expected"),
    [(1, [0, 1]), (2, [0, 1, 3]), (3, [0, 1, 3, 4]), (4, [0, 1, 3, 4, 5]), (None, [5, 4, 3, 1, 0])],
)
def test_so_many_groups_overtake_a_slow_one(window, expected):
    assert chosen(order(window), ready=[5, 4, 3, 1, 0], running=[2]) == expected


def test_what_was_taken_counts_within_the_window():
    made = order(3)
    assert chosen(made, ready=[0, 1, 3, 4, 5], running=[2], count=3) == [0, 1, 3]
    assert chosen(made, ready=[4, 5], running=[2]) == [4]  # 5 stays behind the window that begins at 2
    assert chosen(made, ready=[5, 2], running=[]) == [2, 5]


def test_a_group_that_was_dropped_holds_nobody_up():
    assert chosen(order(1), ready=[3, 4], running=[5]) == [3, 4]


def test_the_order_survives_a_checkpoint():
    made, again = order(2), StartOrder(2)
    chosen(made, ready=[0, 1], running=[2, 3, 4, 5])
    again.load_state_dict(made.state_dict(), PROBLEMS.__getitem__)
    assert chosen(again, ready=[3, 4], running=[2, 5]) == chosen(made, ready=[3, 4], running=[2, 5]) == [3]
