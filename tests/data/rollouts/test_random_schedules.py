"""Admission, age bound and ledger under random schedules: slow engine, slow trainer, deaths, skipped updates,
validation, kills.

Whatever happens: no trained token is older than the bound, every draw has one fate, every batch is whole,
nobody waits for ever.
"""

import json
import math
import random
import signal
import time
from collections import Counter
from contextlib import suppress
from dataclasses import replace

import pytest
from tests.data.rollouts.scripted import Expert, Hints, ScriptedEngine, ruled, scheduler
from tests.data.rollouts.turns import FEEDBACK, Counting, TurnEngine, TurnTokenizer, random_turns, talking

from bapo_lightning.data.rollouts.admission import DynamicSampling
from bapo_lightning.data.rollouts.async_collector import AsyncCollector
from bapo_lightning.data.rollouts.collector import SyncCollector, TrainerState
from bapo_lightning.data.rollouts.conversations import ReplyJournal
from bapo_lightning.data.rollouts.group_state import ArrayStore
from bapo_lightning.data.rollouts.observer import Ledger
from bapo_lightning.data.rollouts.regime import Regime

NUM_SCHEDULES = 2000
NUM_PROBLEMS = 7


class Schedule:
    """One run with everything drawn from a seed. `train` is the trainer's side of `RolloutDataModule` without
    tensors. With `helped`, an expert answers in every group, and all-wrong groups get hints; with `talks`, an
    environment answers between turns; if `filtered`, a third of the responses is not trained on.
    """

    def __init__(self, seed, folder, helped=False, talks=False, filtered=False):
        self.helped = helped
        self.environment = Counting(random_turns) if talks else None
        self.random = rng = random.Random(seed)
        self.groups_per_batch, self.num_batches = rng.randint(1, 4), rng.randint(1, 5)
        self.regime = random_regime(rng)
        self.rules = {"admission": DynamicSampling(rng.randint(1, 3))} if rng.random() < 0.4 else {}
        if filtered:

            def keeps(sample):
                return (sample.rollout.length + int(sample.rollout.prompt_ids[0])) % 3 > 0

            self.rules |= ruled(keeps=keeps).by_name
        self.slow_engine, self.slow_trainer = rng.choice([(0, 0), (0, 0), (1e-4, 0), (0, 1e-4), (1e-4, 1e-4)])
        self.death_rate = rng.choice([0, 0, 0.02])
        self.path = folder / f"{seed}.jsonl"
        self.workers = rng.choice([0, 2]) if talks else 0
        self.version = self.clock = self.batches = self.oldest = 0
        self.last_version = {}
        self.helps = Counter()  # origins in a group, and its hint
        self.open()

    def open(self):
        """A new process: everything that is not in a checkpoint is gone."""
        make_engine = ScriptedEngine if self.environment is None else TurnEngine
        engine = make_engine(self.regime.max_new_tokens, seed=1, dies=self.engine_dies)
        sizes = (self.groups_per_batch, self.num_batches, NUM_PROBLEMS)
        helps = {"expert": Expert(), "hints": Hints()} if self.helped else {}
        self.scheduler = scheduler(
            engine, self.regime, *sizes, observers=[Ledger(self.path)], rules={**self.rules, **helps}
        )
        if self.environment is not None:
            talking_sampler = replace(self.scheduler.sampler, tokenizer=TurnTokenizer())
            self.scheduler.sampler = talking(talking_sampler, self.environment, workers=self.workers)
            self.scheduler.sampler.conversations.journal = ReplyJournal(self.path.with_suffix(".replies"))
        sampler = self.scheduler.sampler
        self.engine = sampler.engine
        if self.regime.async_generation:
            self.collector = AsyncCollector(
                self.scheduler, sampler, self.refresh, self.groups_per_batch, wait_warning_seconds=100
            )
        else:
            self.collector = SyncCollector(self.scheduler, sampler, self.refresh)

    def engine_dies(self):
        if self.slow_engine and self.random.random() < 0.2:
            time.sleep(self.slow_engine)
        return self.random.random() < self.death_rate

    def refresh(self):
        self.engine.load_weights(None, self.version)

    @property
    def state(self):
        return TrainerState(self.version, self.clock)

    def train(self):
        saved = self.save()
        while self.batches < self.num_batches:
            groups = self.collector.next_groups(self.groups_per_batch, self.state)
            assert len(groups) == self.groups_per_batch
            self.batches += 1
            self.use(groups)
            if self.random.random() < 0.3:
                saved = self.save()
            if self.random.random() < 0.15:
                self.kill(saved)
        self.collector.close()
        self.scheduler.drop_rest(self.version)

    def use(self, groups):
        if self.environment is not None:  # rollouts are frozen: one look at each is enough
            for group in groups:
                for sample in group.samples:
                    self.check_turns(sample.rollout)
        for update in range(self.regime.updates_per_rollout_batch):
            if update:
                self.collector.between_updates(self.state)
            for group in groups:
                self.helps[len({item.rollout.origin for item in group.samples}), group.hint] += 1
                trained = group.newest_version if self.regime.stale_action == "mask" else group.oldest_version
                assert 0 <= self.version - trained <= self.regime.age_bound
                self.oldest = max(self.oldest, self.version - trained)
                assert group.oldest_version <= group.ready_version <= self.version
            if self.slow_trainer:
                time.sleep(self.slow_trainer)
            self.version += self.random.random() > 0.05  # a skipped update leaves the version
            self.clock += 1
            if self.random.random() < 0.1:
                with self.collector.exclusive_engine(self.state):
                    self.refresh()

    def check_turns(self, rollout):
        """Every token is in its place, and every turn but one that was cut has its reply."""
        assert list(rollout.response_ids) == list(range(rollout.length))
        expected, turns = list(rollout.prompt_ids), [list(turn) for turn in rollout.turns]
        for number, turn in enumerate(turns):
            expected += turn + ([FEEDBACK + number] * (number + 1) if number + 1 < len(turns) else [])
        assert list(rollout.token_ids) == expected
        assert len(turns) - len(rollout.replies) in (0, 1) and all(len(turn) == 2 for turn in turns[:-1])
        self.helps["turns", len(turns)] += 1

    def save(self):
        store = ArrayStore()
        with self.scheduler.lock:
            state = self.scheduler.state_dict(store)
        return state, store.state_dict(), self.version, self.clock, self.batches

    def kill(self, saved):
        """The old process's thread may still be in a pass; it must not write on, as a dead one would not."""
        self.collector.close()
        state, arrays, self.version, self.clock, self.batches = saved
        self.open()
        self.scheduler.load_state_dict(state, ArrayStore.from_state_dict(arrays))

    def check_ledger(self):
        rows = [json.loads(line) for line in self.path.read_text().splitlines()]
        draws = Counter((row["epoch"], row["problem"]) for row in rows)
        ((epoch, position),) = self.scheduler.stream.places.values()
        assert set(draws.values()) == {1}
        assert len(draws) == epoch * (NUM_PROBLEMS + 1) + position + 1  # with the one that is too long
        assert all(sum(1 for key in draws if key[0] == done) == NUM_PROBLEMS + 1 for done in range(epoch))
        assert sum(row["fate"] == "trained" for row in rows) == self.groups_per_batch * self.num_batches
        return Counter((row["fate"], row.get("reason")) for row in rows)


def random_regime(rng):
    epochs, minibatches, overlap = rng.randint(1, 2), rng.randint(1, 3), rng.random() < 0.7
    partial = rng.random() < 0.5
    return Regime(
        name="random",
        epochs=epochs,
        minibatches=minibatches,
        max_new_tokens=6,
        async_generation=overlap,
        max_age=epochs * minibatches - 1 + rng.randint(0, 8) if overlap or rng.random() < 0.3 else None,
        stale_action=rng.choice(["evict", "mask"]) if partial else "evict",
        partial_tokens=rng.randint(1, 6) if partial else None,
        max_segments=rng.choice([None, 2]) if partial else None,
    )


def windowed(rng, groups_per_batch):
    """A windowed FIFO, and TitanRL's bound for it."""
    updates, ahead, window = rng.randint(1, 4), rng.randint(0, 2), rng.randint(1, 8)
    bound = updates * (ahead + math.ceil((window - 1) / groups_per_batch)) + updates - 1
    partial = rng.choice([None, 2, 4])
    return Regime("windowed", 1, updates, 6, True, bound, partial_tokens=partial, window=window)


@pytest.fixture
def in_time():
    """A deadlock fails the test instead of hanging it."""

    def fail(number, frame):
        raise AssertionError("nothing moves")

    previous = signal.signal(signal.SIGALRM, fail)
    yield lambda: signal.alarm(60)
    signal.alarm(0)
    signal.signal(signal.SIGALRM, previous)


def all_schedules(number, folder, in_time, **kind):
    """Fates and helps of so many schedules, each of which checks itself."""
    fates, helps = Counter(), Counter()
    for seed in range(number):
        in_time()
        schedule = Schedule(seed, folder, **kind)
        try:
            schedule.train()
            fates += schedule.check_ledger()
            helps += schedule.helps + Counter(filtered=schedule.scheduler.statistics.filtered_samples)
        except AssertionError as error:
            raise AssertionError(f"schedule {seed} ({schedule.regime}, {schedule.rules}): {error}") from error
        finally:
            with suppress(Exception):
                schedule.collector.close()
            schedule.scheduler.sampler.close()
    assert fates["dropped", "too old"] and fates["trained", None] > 10 * fates["dropped", "too old"]
    return fates, helps


@pytest.mark.slow
@pytest.mark.parametrize("helped", [False, True])
def test_every_schedule_ends_with_whole_batches_in_time_and_one_fate_for_every_draw(
    helped, tmp_path, in_time
):
    fates, helps = all_schedules(NUM_SCHEDULES // (4 if helped else 1), tmp_path, in_time, helped=helped)
    assert fates["filtered", "all scores equal"]  # the schedules reach that path
    # The expert answers only without a hint. Most groups need the last hint; an earlier one helps where a
    # response is cut at an even length, which depends on the timing of the threads.
    least = {(2, 0.0), (1, 0.75)} if helped else {(1, 0.0)}
    assert least <= set(helps) <= (least | {(1, 0.25), (1, 0.5)} if helped else least)


@pytest.mark.slow
def test_every_schedule_with_turns_keeps_ages_turns_and_fates(tmp_path, in_time):
    _, seen = all_schedules(NUM_SCHEDULES, tmp_path, in_time, talks=True)
    assert all(seen["turns", count] for count in (1, 2, 3))


@pytest.mark.slow
def test_random_schedules_keep_the_ages_of_what_is_trained_on(tmp_path, in_time):
    _, seen = all_schedules(200, tmp_path, in_time, talks=True, filtered=True)
    assert seen["filtered"]


def test_a_windowed_fifo_keeps_within_its_bound_without_dropping_anything(tmp_path, in_time):
    oldest = Counter()
    for seed in range(150):
        in_time()
        schedule = Schedule(seed, tmp_path)
        schedule.regime = windowed(random.Random(seed), schedule.groups_per_batch)
        schedule.path = tmp_path / f"windowed-{seed}.jsonl"
        schedule.open()
        schedule.train()  # which checks all ages
        assert not schedule.check_ledger()["dropped", "too old"]
        oldest[schedule.oldest == schedule.regime.age_bound] += 1
    assert oldest[True] > 15  # the bound is reached


def test_synchronous_regimes_never_evict_when_their_age_bound_is_derived(tmp_path):
    for seed in range(120):
        rng = random.Random(seed)
        epochs, updates, tokens = rng.randint(1, 2), rng.randint(1, 3), rng.randint(1, 6)
        schedule = Schedule(seed, tmp_path, helped=seed % 2 > 0)
        schedule.regime = Regime("partial", epochs, updates, max_new_tokens=6, partial_tokens=tokens)
        schedule.path = tmp_path / f"derived-{seed}.jsonl"
        schedule.open()
        schedule.train()
        assert not schedule.check_ledger()["dropped", "too old"]
