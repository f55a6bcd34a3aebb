"""What the trainer sees of the generating thread: its failures, its deaths, and what a long wait is for."""

import threading
import time
from contextlib import nullcontext
from dataclasses import replace

import pytest
from tests.data.rollouts.scripted import ScriptedEngine, scheduler

from bapo_lightning.data.rollouts.async_collector import AsyncCollector
from bapo_lightning.data.rollouts.async_protocol import AsyncProtocol
from bapo_lightning.data.rollouts.collector import TrainerState
from bapo_lightning.data.rollouts.regime import Regime
from bapo_lightning.rollout.weight_sync import SyncReport
from bapo_lightning.system.errors import EngineError

REGIME = Regime("async", 1, 1, max_new_tokens=4, async_generation=True, max_age=3)
START = TrainerState(version=0, clock=0)


def collector(engine, max_restarts=0, wait_warning_seconds=100.0):
    regime = replace(REGIME, wait_warning_seconds=wait_warning_seconds)
    started = scheduler(engine, regime, groups_per_batch=2, num_batches=4, max_restarts=max_restarts)
    sampler = started.sampler
    return AsyncCollector(started, sampler, lambda: sampler.engine.hand_over(None, 0), 2)


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


@pytest.mark.parametrize("is_right", [True, False])
def test_weights_are_proven_while_the_engine_samples_and_before_a_batch_is_given(is_right):
    sampling, proofs = threading.Event(), []
    rollouts = collector(ScriptedEngine(4, dies=sampling.set))

    def prove(version):
        proofs.append(sampling.wait(10))
        if not is_right:
            raise EngineError("the engine holds other weights")
        return SyncReport(version, 0.0, 0.0, 0.0, 0.0)

    rollouts.sampler.engine.weight_sync.prove = prove
    with nullcontext() if is_right else pytest.raises(EngineError, match="other weights"):
        rollouts.next_groups(2, START)
    assert proofs == [True]
    rollouts.close()


@pytest.mark.parametrize(("dies", "error", "words"), [
    (lambda: 1 / 0, ZeroDivisionError, "division"), (lambda: True, EngineError, "died after 2 restarts"),
])  # fmt: skip
def test_an_error_of_the_generating_thread_is_raised_in_training(dies, error, words):
    rollouts = collector(ScriptedEngine(4, dies=dies), max_restarts=2)
    with pytest.raises(error, match=words):
        rollouts.next_groups(2, START)
    rollouts.close()


def streaming(engine, given):
    """A collector of a stream whose weights are noted in `given`."""
    regime = Regime("stream", 1, 1, max_new_tokens=6, async_generation=True, max_age=7, stream="keep")
    started = scheduler(engine, regime, groups_per_batch=2, num_batches=4)
    restarting = started.sampler.engine

    def refresh():
        given.append(threading.current_thread().name)
        restarting.hand_over(None, 0)

    return AsyncCollector(started, started.sampler, refresh, 2)


def test_a_pass_of_a_stream_ends_after_the_restart_of_its_engine():
    deaths, begun, leave, given = [True], threading.Event(), threading.Event(), []
    engine = ScriptedEngine(6, dies=lambda: bool(deaths) and deaths.pop())
    starts, restart = [], engine.restart

    def late():
        starts.append(threading.current_thread().name)
        begun.set()
        leave.wait(10)
        restart()

    engine.restart = late
    rollouts = streaming(engine, given)
    with rollouts._changed:
        rollouts._visit(START)
        rollouts._protocol.wants_weights = True
        rollouts._protocol.serve_weights()
        rollouts._changed.notify_all()
    assert begun.wait(10)
    with rollouts._changed:
        assert rollouts._protocol.in_pass, "else the trainer would use an engine that is being restarted"
        rollouts._protocol.serve_weights()
    assert given == ["MainThread"]
    leave.set()
    assert len(rollouts.next_groups(2, START)) == 2
    assert starts == ["rollouts"] and given == ["MainThread"] * 2
    rollouts.close()


def test_a_long_wait_says_what_it_is_for(capsys):
    engine = ScriptedEngine(4, dies=lambda: time.sleep(0.1))
    rollouts = collector(engine, wait_warning_seconds=0.02)
    rollouts.next_groups(2, START)
    rollouts.close()
    words = "0 of 2 groups are ready, 2 are in progress, a pass began"
    assert f"training has waited 0 s for a rollout batch: {words}" in capsys.readouterr().err


def overlapping(max_age, **options):
    """The protocol of batches of two groups and two updates, and the versions that the engine was given."""
    regime = Regime("async", 1, 2, max_new_tokens=6, async_generation=True, max_age=max_age, **options)
    engine, given = ScriptedEngine(regime.max_new_tokens), []

    def refresh():
        given.append(protocol.trainer.version)
        engine.load_weights(None, protocol.trainer.version)

    protocol = AsyncProtocol(scheduler(engine, regime, groups_per_batch=2, num_batches=4), refresh, needed=2)
    return protocol, given


def visit(protocol, version):
    """The trainer comes by after so many updates, and brings weights if they are wanted."""
    protocol.visit(TrainerState(version, version))
    protocol.serve_weights()


def one_pass(protocol):
    finished, version = protocol.sampled(protocol.scheduler.sample(protocol.begin()))
    protocol.scored(finished, protocol.scheduler.sampler.score(finished, version), 0.0)


def test_weights_come_only_where_a_pass_would_begin():
    protocol, given = overlapping(max_age=1)
    protocol.visit(TrainerState(0, 0))
    assert not protocol.may_begin() and protocol.wants_weights
    assert not protocol.has_batch(2)
    assert (given, protocol.wants_weights, protocol.may_begin()) == ([0], False, True)
    one_pass(protocol)
    assert protocol.has_batch(2) and len(protocol.take(2)) == 2
    visit(protocol, 1)
    assert given == [0] and not protocol.may_begin()  # no room before the next batch
    visit(protocol, 2)
    assert given == [0, 2] and protocol.may_begin()


def test_weights_of_a_stream_come_at_every_visit_and_scoring_continues_alongside_it():
    (protocol, given), scored = overlapping(7, stream="keep"), []
    for version in range(12):
        visit(protocol, version // 6)
        assert protocol.may_begin() and given == list(range(version // 6 + 1))
        finished, _ = protocol.sampled(protocol.scheduler.sample(protocol.begin()))
        assert not protocol.in_pass
        scored += [(finished, protocol.scheduler.sampler.score(finished, 0))] * bool(finished)
    assert scored and all(group in protocol.scheduler.running for finished, _ in scored for group in finished)
    assert protocol.scheduler.finished == [] and protocol.scheduler.num_ready == 0
    for finished, groups in scored:
        protocol.scored(finished, groups, 0.0)
    assert protocol.scheduler.num_ready + len(protocol.scheduler._rejected) == sum(len(g) for _, g in scored)


def test_no_weights_come_during_a_pass_and_none_begins_while_the_engine_is_held():
    protocol, given = overlapping(max_age=3)
    visit(protocol, 0)
    one_pass(protocol)
    protocol.take(2)
    assert protocol.may_begin() and given == [0]  # taking a batch made room
    protocol, given = overlapping(max_age=7)
    visit(protocol, 0)
    protocol.begin()
    visit(protocol, 1)
    assert protocol.in_pass and given == [0]
    protocol, _ = overlapping(max_age=7)
    visit(protocol, 0)
    protocol.held = True
    assert not protocol.may_begin() and not protocol.wants_weights
