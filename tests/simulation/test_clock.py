"""Virtual time: order of events, waiting, and what cannot go on."""

import pytest

from bapo_lightning.simulation.run import Clock


def test_processes_take_turns_in_the_order_of_their_times():
    clock, told = Clock(), []

    def sleeper(name, seconds):
        for _ in range(2):
            yield seconds
            told.append((name, clock.now))

    clock.start(sleeper("slow", 3.0))
    clock.start(sleeper("fast", 2.0))
    clock.run(lambda: len(told) == 4)
    assert told == [("fast", 2.0), ("slow", 3.0), ("fast", 4.0), ("slow", 6.0)]


def test_a_change_wakes_who_waits():
    clock, told = Clock(), []

    def waiter():
        yield None
        told.append(clock.now)

    def changer():
        yield 5.0
        clock.changed()

    clock.start(waiter())
    clock.start(changer())
    clock.run(lambda: bool(told))
    assert told == [5.0]


def test_processes_that_all_wait_are_an_error():
    clock = Clock()

    def waiter():
        yield None

    clock.start(waiter())
    with pytest.raises(RuntimeError, match="every process waits"):
        clock.run(lambda: False)
