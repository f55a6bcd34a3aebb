"""Admission, age bound and ledger under random schedules: slow engine, slow trainer, deaths, skipped updates,
validation, kills.

Whatever happens: no trained token is older than the bound, every draw has one fate, every batch is whole,
nobody waits for ever.
"""

import math
import signal
from collections import Counter
from contextlib import suppress
from dataclasses import replace

import pytest
from tests.data.rollouts.training_run import TrainingRun

from bapo_lightning.data.rollouts.regime import Regime

NUM_SCHEDULES = 2000


def random_regime(rng, groups_per_batch=1):
    epochs, minibatches, overlap = rng.randint(1, 2), rng.randint(1, 3), rng.random() < 0.7
    partial = rng.random() < 0.5
    return Regime(
        name="random", epochs=epochs, minibatches=minibatches, max_new_tokens=6, async_generation=overlap,
        max_age=epochs * minibatches - 1 + rng.randint(0, 8) if overlap or rng.random() < 0.3 else None,
        stale_action=rng.choice(["evict", "mask"]) if partial else "evict",
        partial_tokens=rng.randint(1, 6) if partial else None,
        max_segments=rng.choice([None, 2]) if partial else None,
    )  # fmt: skip


def windowed(rng, groups_per_batch):
    """A windowed FIFO, and TitanRL's bound for it."""
    updates, ahead, window = rng.randint(1, 4), rng.randint(0, 2), rng.randint(1, 8)
    bound = updates * (ahead + math.ceil((window - 1) / groups_per_batch)) + updates - 1
    partial = rng.choice([None, 2, 4])
    return Regime("windowed", 1, updates, 6, True, bound, partial_tokens=partial, window=window)


def streamed(rng, groups_per_batch):
    """A stream, some of them with the bound of a window."""
    if rng.random() < 0.3:
        return replace(windowed(rng, groups_per_batch), stream="keep", partial_tokens=None)
    updates, action, longest = rng.randint(1, 4), rng.choice(["evict", "mask"]), rng.choice([6, 24])
    bound = updates - 1 + rng.randint(0, 8)
    return Regime("stream", 1, updates, longest, True, bound, action, stream="keep")


@pytest.fixture
def in_time():
    """A deadlock fails the test instead of hanging it."""

    def fail(number, frame):
        raise AssertionError("nothing moves")

    previous = signal.signal(signal.SIGALRM, fail)
    yield lambda: signal.alarm(60)
    signal.alarm(0)
    signal.signal(signal.SIGALRM, previous)


def all_schedules(number, folder, in_time, regime=random_regime, **kind):
    """Fates and helps of so many runs, and how many reached the age bound; each checks itself."""
    fates, helps, at_bound = Counter(), Counter(), 0
    for seed in range(number):
        in_time()
        run = TrainingRun(folder / str(seed), seed, regime, **kind)
        try:
            run.train()
            fates += run.fates()
            helps += run.helps
            at_bound += run.oldest == run.regime.age_bound
        except AssertionError as error:
            raise AssertionError(f"schedule {seed} ({run.regime}, {run.rules}): {error}") from error
        finally:
            with suppress(Exception):
                run.collector.close()
            run.scheduler.sampler.close()
    return fates, helps, at_bound


@pytest.mark.slow
@pytest.mark.drill
@pytest.mark.parametrize("helped", [False, True])
def test_every_schedule_ends_with_whole_batches_in_time_and_one_fate_for_every_draw(
    helped, tmp_path, in_time
):
    number = NUM_SCHEDULES // (4 if helped else 1)
    fates, helps, _ = all_schedules(number, tmp_path, in_time, helped=helped)
    assert fates["dropped", "too old"] and fates["filtered", "all scores equal"]  # they reach those paths
    assert fates["trained", None] > 10 * fates["dropped", "too old"]
    # The expert answers only without a hint. Most groups need the last hint; an earlier one helps where a
    # response is cut at an even length, which depends on the timing of the threads.
    least = {(2, 0.0), (1, 0.75)} if helped else {(1, 0.0)}
    assert least <= set(helps) <= (least | {(1, 0.25), (1, 0.5)} if helped else least)


@pytest.mark.slow
@pytest.mark.drill
@pytest.mark.parametrize("filtered", [False, True])
def test_every_schedule_with_turns_keeps_ages_turns_and_fates(filtered, tmp_path, in_time):
    number = NUM_SCHEDULES // 3  # they wait for replies most of the time
    fates, seen, _ = all_schedules(number, tmp_path, in_time, talks=True, filtered=filtered)
    assert fates["dropped", "too old"] and fates["trained", None] > 10 * fates["dropped", "too old"]
    assert all(seen["turns", count] for count in (1, 2, 3)) and (seen["filtered"] > 0) is filtered


@pytest.mark.parametrize("kind", [{}, {"helped": True}, {"talks": True}, {"talks": True, "filtered": True}])
def test_every_stream_keeps_ages_and_fates(kind, tmp_path, in_time):
    fates, _, at_bound = all_schedules(30, tmp_path, in_time, streamed, **kind)
    assert fates["trained", None] > 10 * fates["dropped", "too old"] and at_bound > 2


@pytest.mark.slow
@pytest.mark.drill
@pytest.mark.parametrize("talks", [False, True])
def test_every_random_stream_keeps_ages_and_fates(talks, tmp_path, in_time):
    number = NUM_SCHEDULES // (10 if talks else 2)
    fates, _, _ = all_schedules(number, tmp_path, in_time, streamed, talks=talks)
    # The oldest group goes first, so few are overtaken until they are too old: none where turns are short.
    assert talks or fates["dropped", "too old"]
    assert fates["trained", None] > 10 * fates["dropped", "too old"]


def test_streams_of_few_batches_in_flight_get_stuck_nowhere(tmp_path, in_time):
    def regime(rng, groups_per_batch):
        return replace(streamed(rng, groups_per_batch), batches_in_flight=rng.randint(1, 2))

    fates, _, _ = all_schedules(60, tmp_path, in_time, regime)
    assert fates["trained", None] > 10 * fates["dropped", "too old"]


def test_a_windowed_stream_drops_nothing(tmp_path, in_time):
    def regime(rng, groups_per_batch):
        return replace(windowed(rng, groups_per_batch), stream="keep", partial_tokens=None)

    fates, _, at_bound = all_schedules(60, tmp_path, in_time, regime)
    assert not fates["dropped", "too old"] and at_bound > 5


def test_a_windowed_fifo_keeps_within_its_bound_without_dropping_anything(tmp_path, in_time):
    fates, _, at_bound = all_schedules(100, tmp_path, in_time, windowed)
    assert not fates["dropped", "too old"] and at_bound > 10  # the bound is reached


def test_synchronous_regimes_never_evict_when_their_age_bound_is_derived(tmp_path, in_time):
    def derived(rng, groups_per_batch):
        epochs, updates, tokens = rng.randint(1, 2), rng.randint(1, 3), rng.randint(1, 6)
        return Regime("partial", epochs, updates, max_new_tokens=6, partial_tokens=tokens)

    for helped in (False, True):
        folder = tmp_path / str(helped)
        folder.mkdir()
        fates, _, _ = all_schedules(40, folder, in_time, derived, helped=helped)
        assert not fates["dropped", "too old"]
