import math

from bapo_lightning.rewards.math.workers.tries import FIRST_TRY_SECONDS, Tries
from bapo_lightning.types import ScoreStatus

RIGHT = (ScoreStatus.CORRECT, "")
TIMEOUT = (ScoreStatus.TIMEOUT, "")


def test_every_answer_gets_a_short_try_first_and_short_answers_before_long_ones():
    tries = Tries([30, 10, 20], seconds=5.0, budget_seconds=math.inf)
    assert [tries.take() for _ in range(3)] == [(index, FIRST_TRY_SECONDS) for index in (1, 2, 0)]
    tries.settle(1, RIGHT, 0.1)
    tries.settle(2, None, FIRST_TRY_SECONDS)
    tries.settle(0, None, FIRST_TRY_SECONDS)
    assert [tries.take() for _ in range(2)] == [(2, 5.0), (0, 5.0)]
    tries.settle(2, RIGHT, 3.0)
    tries.settle(0, None, 5.0)
    assert not tries
    assert tries.verdicts == [TIMEOUT, RIGHT, RIGHT]


def test_a_deadline_below_the_short_try_is_the_only_one():
    tries = Tries([1], seconds=0.2, budget_seconds=math.inf)
    assert tries.take() == (0, 0.2)
    tries.settle(0, None, 0.2)
    assert not tries and tries.verdicts == [TIMEOUT]


def test_a_try_goes_on_while_nothing_waits_and_the_budget_lasts():
    tries = Tries([1, 2], seconds=5.0, budget_seconds=3.0)
    tries.take()
    assert tries.more_seconds(1.0) == 0.0
    tries.take()
    assert tries.more_seconds(1.0) == 2.0
    assert tries.more_seconds(3.0) == 0.0
    tries.settle(0, None, 2.5)
    assert tries.more_seconds(1.0) == 0.0


def test_quick_answers_cost_nothing_and_slow_ones_end_with_the_budget():
    tries = Tries([1, 1, 1, 2, 2, 2], seconds=5.0, budget_seconds=2.5)
    for index in range(3):
        assert tries.take()[0] == index
        tries.settle(index, RIGHT, 0.9)
    for index in (3, 4, 5):
        assert tries and tries.take()[0] == index
        tries.settle(index, None, 1.0)
    assert not tries
    assert tries.verdicts == [RIGHT] * 3 + [TIMEOUT] * 3
