"""Passes of a fleet: decoding in step, slots, deaths and returns, all by hand."""

from math import inf

import pytest

from bapo_lightning.extras.simulation.fleet import EngineTimes, Failures, VirtualFleet

NEVER = Failures()


def fleet(copies, failures=NEVER, **times):
    return VirtualFleet(copies, EngineTimes(**times), failures, seed=0)


READ = 4 * 0.25 + sum(1 + 0.5 * (4 + made) for made in range(3))


@pytest.mark.parametrize(("made", "requests", "seconds", "busy"), [
    (fleet(1, step=2.0, sequence=1.0), [(0, 3), (0, 5)], 3 * (2 + 2) + 2 * (2 + 1), 18.0),
    (fleet(2, step=1.0, begin=3.0), [(0, 5)], 8.0, 2 * 3.0 + 5.0),
    (fleet(1, step=1.0, context=0.5, prefill=0.25), [(4, 3)], READ, READ),
    (fleet(2, step=1.0, slots=1), [(0, 10), (0, 2), (0, 3), (0, 4)], 10.0, 10.0 + 9.0),
], ids=["in step until the longest ends", "every copy takes its time to begin",
        "the cache grows and prompts are read first", "requests go to the copy that is free"])  # fmt: skip
def test_a_pass_takes_its_time(made, requests, seconds, busy):
    done = made.run(0.0, requests)
    assert (done.seconds, done.busy) == (seconds, busy)


def test_sequences_at_once_are_counted_over_the_time_of_a_pass():
    assert fleet(2, step=1.0, slots=1).run(5.0, [(0, 10), (0, 2), (0, 3), (0, 4)]).running == 1.9
    assert fleet(1, step=1.0, prefill=0.5).run(0.0, [(4, 6), (0, 2)]).running == (2 * 4 + 1 * 4) / 8


def test_times_are_those_of_the_plan_for_equal_lengths_that_all_fit():
    made = fleet(3, step=0.5, context=0.125, slots=4).run(7.0, [(0, 8)] * 6)
    assert made.seconds == pytest.approx(8 * 0.5 + 0.125 * 2 * sum(range(8)))


def test_requests_of_a_dead_copy_are_sampled_again_by_others():
    made = fleet(2, step=1.0)
    made.dies_at, made.alive_from = [4.5, inf], [0.0, 0.0]
    done = made.run(0.0, [(0, 10), (0, 6)])
    assert (done.deaths, done.lost_tokens) == (1, 4)
    assert done.seconds == pytest.approx(14.5)  # the other one takes it at once, beside its own
    assert done.busy == pytest.approx(4.5 + 14.5)


def test_a_fleet_without_living_copies_waits_for_the_first_that_is_back():
    made = fleet(1, Failures(0.0, repair_seconds=60.0), step=1.0)
    made.dies_at = [2.0]
    done = made.run(0.0, [(0, 5)])
    assert (done.seconds, done.lost_tokens, done.deaths) == (2 + 60 + 5, 2, 1)


def test_copies_that_died_between_passes_take_part_when_they_are_back():
    made = fleet(2, Failures(0.0, repair_seconds=60.0), step=1.0)
    made.dies_at = [50.0, inf]
    assert made.run(100.0, [(0, 20), (0, 20)]).busy == 20.0  # only one lives, with both
    assert made.run(120.0, [(0, 20), (0, 20)]).busy == 40.0


def test_every_request_is_sampled_whatever_dies():
    deaths = 0
    for seed in range(30):
        made = VirtualFleet(3, EngineTimes(1.0, 0.1, 0.001, 0.01, slots=2), Failures(20.0, 30.0), seed)
        done = made.run(0.0, [(number, 10 + 7 * number) for number in range(12)])
        assert 0 < done.busy <= 3 * done.seconds
        assert bool(done.deaths) >= bool(done.lost_tokens)
        deaths += done.deaths
    assert deaths > 30
