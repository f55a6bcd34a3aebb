"""What the trainer sees of the generating thread: its failures, its deaths, and what a long wait is for."""

import time

import pytest
from tests.data.rollouts.scripted import ScriptedEngine, scheduler

from bapo_lightning.data.rollouts.async_collector import AsyncCollector
from bapo_lightning.data.rollouts.collector import TrainerState
from bapo_lightning.data.rollouts.regime import Regime
from bapo_lightning.errors import EngineError

REGIME = Regime("async", 1, 1, max_new_tokens=4, async_generation=True, max_age=3)
START = TrainerState(version=0, clock=0)


def collector(engine, max_restarts=0, wait_warning_seconds=100.0):
    started = scheduler(engine, REGIME, groups_per_batch=2, num_batches=4, max_restarts=max_restarts)
    sampler = started.sampler
    return AsyncCollector(
        started, sampler, lambda: sampler.engine.load_weights(None, 0), 2, wait_warning_seconds
    )


def test_generation_runs_ahead_as_far_as_the_age_allows_and_no_further():
    rollouts = collector(ScriptedEngine(4))
    assert len(rollouts.next_groups(2, START)) == 2
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline and rollouts.scheduler.num_ready < 6:
        time.sleep(0.001)
    time.sleep(0.02)
    # Batches 1, 2, 3 reach ages 1, 2, 3.
    assert (rollouts.scheduler.num_ready, len(rollouts.scheduler.running)) == (6, 0)
    rollouts.close()


def test_an_error_of_the_generating_thread_is_raised_in_training():
    engine = ScriptedEngine(4)
    engine.generate = lambda requests, sampling: 1 / 0
    rollouts = collector(engine)
    with pytest.raises(ZeroDivisionError):
        rollouts.next_groups(2, START)
    rollouts.close()


def test_an_engine_that_dies_too_often_ends_training():
    rollouts = collector(ScriptedEngine(4, dies=lambda: True), max_restarts=2)
    with pytest.raises(EngineError, match="died after 2 restarts"):
        rollouts.next_groups(2, START)
    rollouts.close()


def test_a_long_wait_says_what_it_is_for(capsys):
    engine = ScriptedEngine(4, dies=lambda: time.sleep(0.3))
    rollouts = collector(engine, wait_warning_seconds=0.1)
    rollouts.next_groups(2, START)
    rollouts.close()
    told = capsys.readouterr().err
    assert (
        "training has waited 0 s for a rollout batch: 0 of 2 groups are ready, 2 are on their way, a pass "
        "began" in told
    )
