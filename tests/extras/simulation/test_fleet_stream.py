"""Streams of a fleet, by hand: sequences that come and go between steps, new weights, slots, deaths."""

from math import inf

import pytest

from bapo_lightning.data.rollouts.running_group import STEPS
from bapo_lightning.extras.simulation.fleet import EngineTimes, Failures, VirtualFleet
from bapo_lightning.extras.simulation.fleet_stream import FleetStream


def stream(copies=1, stale="keep", dies_at=None, repair=60.0, **times):
    fleet = VirtualFleet(copies, EngineTimes(**times), Failures(0.0, repair), seed=0)
    if dies_at is not None:
        fleet.dies_at = dies_at
    made = FleetStream(fleet, stale)
    made.load(0)
    return made


def enter(made, *lengths, context=0):
    for number, length in enumerate(lengths):
        made.enter(number, context, length)


def test_a_sequence_ends_between_two_steps_and_the_others_go_on():
    made = stream(step=2.0, sequence=1.0)
    enter(made, 3, 20)
    done, pieces, ended = made.call(0.0)
    assert done.seconds == done.busy == 3 * (2 + 2) + 5 * (2 + 1)
    assert (pieces, ended) == ({0: [(3, 0)], 1: [(8, 0)]}, {0})
    assert done.running == (3 * 2 + 5 * 1) / 8
    assert made.quiet_call(done.seconds).seconds == STEPS * 3  # up to its sixteenth token
    assert made.quiet_call(2 * done.seconds) is None  # it ends in the next call
    assert made.call(2 * done.seconds)[1:] == ({1: [(12, 0)]}, {1})


def test_tokens_have_the_version_of_their_step():
    made = stream(step=1.0)
    enter(made, 20)
    made.call(0.0)
    made.load(1)
    assert made.quiet_call(8.0).seconds == 8
    made.load(3)
    assert made.call(16.0)[1:] == ({0: [(8, 1), (4, 3)]}, {0})


def test_contexts_are_read_first_and_again_under_new_weights_if_they_are_recomputed():
    for stale, read in (("keep", 0), ("recompute", 10 + 8)):
        made = stream(stale=stale, step=1.0, prefill=0.25)
        enter(made, 30, context=10)
        assert made.call(0.0)[0].seconds == 10 * 0.25 + 8
        made.load(1)
        assert made.quiet_call(20.0).seconds == read * 0.25 + 8


def test_a_call_lasts_as_long_as_the_slowest_copy_needs():
    made = stream(copies=2, step=1.0, prefill=1.0)
    made.enter(0, 5, 20)
    made.enter(1, 0, 20)
    done = made.call(0.0)[0]
    assert (done.seconds, done.busy) == (5 + 8, 5 + 8 + 8)


def test_what_waits_for_room_begins_at_the_step_at_which_another_one_ends():
    made = stream(step=1.0, slots=1)
    enter(made, 3, 4, 9)
    assert made.call(0.0)[1:] == ({0: [(3, 0)], 1: [(4, 0)], 2: [(1, 0)]}, {0, 1})
    assert made.call(8.0)[1:] == ({2: [(8, 0)]}, {2})


def test_what_is_given_up_leaves_and_its_tokens_were_in_vain():
    made = stream(step=1.0, sequence=1.0)
    enter(made, 50, 60)
    made.call(0.0)
    made.quiet_call(16.0)
    made.give_up(1)
    made.give_up(7)  # unknown
    done = made.quiet_call(40.0)
    assert (done.seconds, done.lost_tokens) == (8 * 2, 8)  # the first eight were told


def test_sequences_of_a_dead_copy_are_read_anew_by_another_and_lose_nothing():
    made = stream(copies=2, step=1.0, prefill=0.5, dies_at=[10.0, inf])
    enter(made, 40, 40)
    made.call(0.0)
    made.load(1)
    made.quiet_call(8.0)
    assert made.quiet_call(16.0) is None
    done, pieces, _ = made.call(16.0)
    assert (done.deaths, done.lost_tokens, done.seconds) == (1, 0, 16 * 0.5 + 8)
    assert pieces == {0: [(8, 1), (8, 1)]}
    assert made.quiet_call(60.0) and made.quiet_call(70.0) is None  # the dead copy is back


def test_a_fleet_without_living_copies_waits_for_the_first_that_is_back():
    made = stream(step=1.0, dies_at=[2.0])
    enter(made, 9)
    made.call(0.0)
    assert made.call(8.0)[0].seconds == pytest.approx(2 + 60 - 8 + 1)


def test_times_are_those_of_passes_where_all_sequences_are_equal():
    times = {"step": 0.5, "context": 0.125, "prefill": 0.25, "slots": 4}
    whole = VirtualFleet(3, EngineTimes(**times), Failures(), 0).run(0.0, [(4, 32)] * 6)
    made, seconds = stream(copies=3, **times), 0.0
    enter(made, *[32] * 6, context=4)
    while True:
        done, _, ended = made.call(seconds)
        seconds += done.seconds
        if ended:
            break
    assert seconds == pytest.approx(whole.seconds) and len(ended) == 6
