"""What enters a rollout batch, by hand."""

import pytest
from tests.builders import group, rollout
from tests.data.rollouts.scripted import ScriptedEngine, scheduler

from bapo_lightning.data.rollouts.admission import DynamicSampling
from bapo_lightning.data.rollouts.regime import Regime
from bapo_lightning.data.rollouts.scheduler import StartOrder
from bapo_lightning.types import Group, Problem, WorkItem


def test_groups_of_equal_scores_fill_a_batch_without_a_gradient():
    engine = ScriptedEngine(9)
    engine.load_weights(None, 0)
    rules = {"admission": DynamicSampling(max_rounds=1)}
    source = scheduler(engine, Regime("replay", 1, 1, max_new_tokens=9), 2, num_batches=1, rules=rules)
    source.schedule(clock=0, needed=2, version=0)
    source.running.clear()
    # An overlong penalty made these advantages: both answers are wrong, and one is longer.
    answers = [rollout([1], [0] * length, [-1.0] * length) for length in (3, 9)]
    equal, mixed = (group(name, answers, [float(name), 0.0], [1.0, -1.0]) for name in "01")
    source.add_scored([], [equal, mixed], seconds=0.0)
    assert source.has_batch(2)
    first, second = source.take_batch(2, version=0)
    assert (first.problem.id, first.advantages) == ("1", (1.0, -1.0))
    assert (second.problem.id, second.advantages) == ("0", (0.0, 0.0))


def test_no_group_starts_while_so_many_batches_are_in_flight():
    engine = ScriptedEngine(9)
    engine.load_weights(None, 0)
    regime = Regime("async", 1, 1, max_new_tokens=9, async_generation=True, max_age=9, batches_in_flight=2)
    source = scheduler(engine, regime, 2, num_batches=9)
    answers = [rollout([1], [0], [-1.0])] * 2
    for names in ("01", "23"):
        source.schedule(clock=0, needed=2, version=0)
        groups = [group(name, answers, [1.0, 0.0], [1.0, -1.0]) for name in names]
        source.add_scored(source.running[:], groups, seconds=0.0)
    assert (source.num_ready, source.num_startable(1, needed=2)) == (4, 0)
    source.take_batch(2, version=1)
    assert source.num_startable(1, needed=2) == 2


PROBLEMS = {str(number): Problem(str(number), "", "") for number in range(8)}
ITEMS = [WorkItem(problem, 0) for problem in PROBLEMS.values()]


def order(window):
    made = StartOrder(window)
    made.add(ITEMS[:6])
    return made


def chosen(made, ready, running, count=9):
    groups = [Group(PROBLEMS[str(number)], ()) for number in ready]
    taken = made.choose(groups, [ITEMS[number] for number in running], count)
    return [int(group.problem.id) for group in taken]


@pytest.mark.parametrize(("window", "expected"), [
    (1, [0, 1]), (2, [0, 1, 3]), (3, [0, 1, 3, 4]), (4, [0, 1, 3, 4, 5]), (None, [5, 4, 3, 1, 0]),
])  # fmt: skip
def test_so_many_groups_overtake_a_slow_one(window, expected):
    assert chosen(order(window), ready=[5, 4, 3, 1, 0], running=[2]) == expected


def test_what_was_taken_counts_within_the_window():
    made = order(3)
    assert chosen(made, ready=[0, 1, 3, 4, 5], running=[2], count=3) == [0, 1, 3]
    assert chosen(made, ready=[4, 5], running=[2]) == [4]  # 5 stays behind the window that begins at 2
    assert chosen(made, ready=[5, 2], running=[]) == [2, 5]
    assert chosen(order(1), ready=[3, 4], running=[5]) == [3, 4]  # a group that was dropped holds nobody up


def test_the_order_survives_a_checkpoint():
    made, again = order(2), StartOrder(2)
    chosen(made, ready=[0, 1], running=[2, 3, 4, 5])
    again.load_state_dict(made.state_dict(), PROBLEMS.__getitem__)
    assert chosen(again, ready=[3, 4], running=[2, 5]) == chosen(made, ready=[3, 4], running=[2, 5]) == [3]
