"""Phases of threads, and what is counted in them."""

import threading

import pytest

from bapo_lightning.system.phases import advance, phase, running


def names():
    return [[entered.name for entered in phases] for phases in running()]


def test_phases_lie_inside_each_other_and_the_innermost_counts():
    assert running() == []
    advance()  # outside of any phase nothing is counted
    with phase("validation"), phase("sampling", 8) as sampling:
        advance(3)
        advance()
        assert names() == [["validation", "sampling"]]
        assert (sampling.done, sampling.total) == (4, 8)
    assert running() == []


def test_an_error_ends_its_phases():
    with pytest.raises(ZeroDivisionError), phase("updating"):
        _ = 1 / 0
    assert running() == []


def test_a_function_can_be_a_phase():
    @phase("scoring")
    def score():
        return names()

    assert score() == score() == [["scoring"]]


def test_each_thread_is_in_phases_of_its_own_and_the_main_thread_is_reported_first():
    entered, ended = threading.Event(), threading.Event()

    def generate():
        with phase("sampling", 8):
            advance(2)
            entered.set()
            ended.wait(60)

    thread = threading.Thread(target=generate)
    thread.start()
    assert entered.wait(60)
    with phase("updating"):
        advance()
        assert names() == [["updating"], ["sampling"]]
        assert [phases[-1].done for phases in running()] == [1, 2]
    ended.set()
    thread.join()
    assert running() == []
