"""Runs in virtual time: times and ages by hand, ages of the real collector, bounds in random regimes."""

import json
import random
from collections import Counter

import pytest
from tests.data.rollouts.scripted import ScriptedEngine, scheduler
from tests.data.rollouts.test_random_schedules import random_regime, streamed
from tests.extras.simulation.worlds import LONGEST, simulated, times

from bapo_lightning.data.batches.replay_queue import ReplayQueue
from bapo_lightning.data.rollouts.admission import DynamicSampling
from bapo_lightning.data.rollouts.collector import SyncCollector, TrainerState
from bapo_lightning.data.rollouts.regime import Regime
from bapo_lightning.data.rollouts.rules import Rules
from bapo_lightning.data.rollouts.running_group import STEPS
from bapo_lightning.extras.simulation.fleet import EngineTimes, Failures
from bapo_lightning.extras.simulation.lengths import length_table
from bapo_lightning.extras.simulation.run import Clock, Setting, VirtualRun
from bapo_lightning.extras.simulation.study import outcome_of
from bapo_lightning.extras.simulation.times import ServiceTimes


def test_in_turns_the_times_add_up_and_ages_count_the_updates_on_a_batch():
    run = simulated(times(update=1.0, step=1.0, sync=3.0, reward=0.5), num_batches=3)
    cycle = 3.0 + LONGEST * 1.0 + 8 * 0.5 + 4 * 1.0
    assert run.end == 3 * cycle
    assert [dict(update.ages) for update in run.updates] == [{age: 2 * LONGEST} for age in range(4)] * 3
    assert [dict(update.starts) for update in run.updates] == [{age: 2} for age in range(4)] * 3
    outcome = outcome_of(run, 1)
    assert (outcome.start_age, outcome.requests, outcome.law_age) == (1.5, 8.0, None)
    assert outcome.rho == pytest.approx(4.0 / LONGEST)
    assert outcome.seconds == 2 * cycle
    assert outcome.tokens_per_second == 8 * LONGEST / cycle
    assert outcome.syncing == 3 / cycle
    assert outcome.trainer_waits == 12 / cycle
    assert outcome.fleet_waits == pytest.approx(1 - LONGEST / cycle)
    assert (outcome.ages, outcome.wasted) == ({0: 0.25, 1: 0.25, 2: 0.25, 3: 0.25}, 0.0)


def test_alongside_training_the_slower_half_sets_the_pace():
    """Generation of a batch takes 8 s; four updates take 4 s, or 16 s."""
    for seconds, batch_seconds, trainer_waits in ((1.0, 8, 0.5), (4.0, 16, 0.0)):
        run = simulated(times(update=seconds), async_generation=True, max_age=7, num_batches=12)
        found = outcome_of(run, 4, 2)
        assert found.tokens_per_second == pytest.approx(8 * LONGEST / batch_seconds)
        assert (found.trainer_waits, found.fleet_waits) == pytest.approx((trainer_waits, 0.5 - trainer_waits))
    assert found.ages == {4: 0.25, 5: 0.25, 6: 0.25, 7: 0.25}


def test_without_room_to_run_ahead_both_halves_wait_for_each_other():
    run = simulated(times(update=2.0), async_generation=True, max_age=3, num_batches=4)
    assert run.end == 4 * (8 + 4 * 2.0)
    assert Counter(age for update in run.updates for age in update.ages) == dict.fromkeys(range(4), 4)


def test_a_hand_over_of_weights_stops_both_halves():
    run = simulated(times(update=2.0, sync=5.0), async_generation=True, max_age=3, num_batches=4)
    assert run.end == 4 * (5 + 8 + 4 * 2.0)
    assert outcome_of(run, 0).syncing == pytest.approx(5 / 21)


def test_a_stream_keeps_the_engine_busy_where_passes_wait_for_their_longest_response():
    lengths = length_table("lognormal", 8.0, 64, 1.0)
    found = {}
    for stream in (None, "keep"):
        sizes = {"max_age": 15, "num_batches": 40, "max_new_tokens": 64, "group_size": 8, "is_endless": True}
        own = {"async_generation": True, "lengths": lengths, "stream": stream, **sizes}
        found[stream] = outcome_of(simulated(times(update=0.1), **own), 4)
    assert found["keep"].tokens_per_second > 1.25 * found[None].tokens_per_second
    assert found["keep"].fleet_idle < 0.05


def test_a_limit_in_flight_drops_no_group_at_the_mean_age_of_a_bound_that_drops_an_eighth():
    lengths, found = length_table("lognormal", 200, 3200, 1.0), []
    service = ServiceTimes(1, EngineTimes(1.0, slots=128), lambda responses: 250.0)
    for own in ({"max_age": 4}, {"max_age": 16, "batches_in_flight": 3}):
        regime = Regime("stream", 1, 1, 3200, True, stream="keep", **own)
        run = VirtualRun(Setting(regime, 8, 16, 60, lengths), service)
        run.run()
        ages = sum((update.ages for update in run.updates[10:]), Counter())
        evicted = run.scheduler.statistics.evicted
        found.append((evicted / (evicted + 60 * 16), sum(age * n for age, n in ages.items()) / ages.total()))
    (bound, bound_age), (limit, limit_age) = found
    assert (bound, limit) == (pytest.approx(1 / 8, abs=0.02), 0)
    assert limit_age == pytest.approx(bound_age, abs=0.2)
    assert run.end / 60 < 1.1 * 250


def test_a_stream_of_equal_lengths_takes_as_long_as_passes():
    service = ServiceTimes(1, EngineTimes(1.0, slots=8), lambda responses: 10.0)
    own = {"async_generation": True, "max_age": 7, "max_new_tokens": 64}
    own["lengths"] = length_table("constant", 64, 64, 0.0)
    runs = [simulated(service, stream=stream, **own) for stream in (None, "keep")]
    assert runs[0].end == pytest.approx(runs[1].end, rel=0.1)
    assert all(max(max(update.ages) for update in run.updates) <= 7 for run in runs)


def test_new_weights_wait_for_the_end_of_the_present_steps_and_responses_go_on():
    own = {"async_generation": True, "max_age": 7, "num_batches": 8, "max_new_tokens": 64}
    own["lengths"] = length_table("constant", 64, 64, 0.0)
    run = simulated(times(update=10.0), stream="keep", **own)
    passes, syncs = run.engine.passes, [begin for begin, _ in run.engine.syncs]
    assert not any(begin < sync < begin + done.seconds for begin, done in passes for sync in syncs)
    assert len(syncs) > 6 and all(done.seconds == STEPS for _, done in passes)
    assert max(len(update.ages) for update in run.updates) > 3  # tokens of several versions in one response


def test_the_schedule_is_the_one_that_a_run_would_write(tmp_path):
    simulated(async_generation=True, max_age=7, num_batches=2, schedule=tmp_path / "schedule.jsonl")
    rows = [json.loads(line) for line in (tmp_path / "schedule.jsonl").read_text().splitlines()]
    assert [row["do"] for row in rows][:7] == ["visit", "sync", "pass", "sampled", "scored", "pass", "take"]


class ScriptedLengths(dict):
    """The lengths that `ScriptedEngine` gives to the responses to a problem."""

    def __contains__(self, item):
        return True

    def __missing__(self, item):
        length = random.Random(f"0/{int(item.problem.id)}").randint(1, LONGEST)
        return [length, length], False


def ages_of_the_real_collector(source, regime, num_batches):
    """Tokens by age in each update, with an engine that follows a script."""
    engine, queue, version, found = source.sampler.engine, ReplayQueue(regime.epochs, 3, 0), 0, []
    collector = SyncCollector(source, source.sampler, lambda: engine.load_weights(None, version))
    for _ in range(num_batches):
        queue.put(collector.next_groups(3, TrainerState(version, version)))
        while len(queue):
            rollouts = [sample.rollout for group in queue.take() for sample in group.samples]
            found.append(Counter(version - past for rollout in rollouts for past in rollout.versions))
            version += 1
    return found


@pytest.mark.parametrize("partial_tokens", [None, 3])
def test_ages_in_turns_are_those_of_the_real_collector_to_the_token(partial_tokens):
    regime = Regime("turns", 2, 3, max_new_tokens=LONGEST, partial_tokens=partial_tokens)
    run = VirtualRun(Setting(regime, 2, 3, 8, length_table("constant", 1, 1, 0.0), is_endless=False), times())
    real = scheduler(ScriptedEngine(LONGEST), regime, groups_per_batch=3, num_batches=8)
    run.scheduler.stream = scheduler(ScriptedEngine(LONGEST), regime, 3, 8).stream  # the same problems
    object.__setattr__(run.sampler, "drawn", ScriptedLengths())
    run.run()
    assert [update.ages for update in run.updates] == ages_of_the_real_collector(real, regime, 8)
    assert max(max(update.ages) for update in run.updates) > 5 or partial_tokens is None


@pytest.mark.parametrize("kind", [random_regime, streamed])
@pytest.mark.parametrize("seed", range(30))
def test_random_regimes_end_with_whole_batches_and_ages_within_the_bound(seed, kind):
    rng = random.Random(seed)
    regime = kind(rng, 1)
    lengths = length_table("geometric", 3.0, regime.max_new_tokens, 0.0)
    admission = {"rules": Rules({"admission": DynamicSampling(2)}), "uniform_share": 0.5}
    options = (admission if rng.random() < 0.5 else {}) | {"seed": seed}
    options["failures"] = Failures(rng.choice([0, 200]), 5.0)
    setting = Setting(regime, 2, regime.minibatches * rng.randint(1, 2), 6, lengths, 5, **options)
    engine = EngineTimes(rng.random(), rng.random(), rng.random() / 10, rng.random() / 10, slots=2)
    update = rng.random() * 10
    service = ServiceTimes(2, engine, lambda responses: update, rng.random(), rng.random() / 10)
    run = VirtualRun(setting, service)
    run.run()
    assert len(run.updates) == 6 * regime.updates_per_rollout_batch and len(run.entered) == 6
    assert all(0 <= age <= regime.age_bound for update in run.updates for age in update.ages)
    outcome = outcome_of(run, 1)
    for share in ("trainer_waits", "syncing", "fleet_waits", "fleet_idle", "wasted"):
        assert -1e-9 <= getattr(outcome, share) <= 1 + 1e-9
    again = VirtualRun(setting, service)
    again.run()
    assert (again.end, again.updates) == (run.end, run.updates)


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
    clock.start(iter([None]))
    with pytest.raises(RuntimeError, match="every process waits"):
        clock.run(lambda: False)
