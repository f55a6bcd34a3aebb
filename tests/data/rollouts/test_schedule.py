"""An asynchronous run that follows a recorded schedule takes, drops and counts the same, whatever happened
when it was recorded: slow engines, deaths, skipped updates, validations, kills.
"""

import json
import random
import time
from collections import Counter
from dataclasses import asdict

import pytest
from tests.data.rollouts.scripted import ScriptedEngine, scheduler

from bapo_lightning.data.rollouts.admission import DynamicSampling
from bapo_lightning.data.rollouts.async_collector import AsyncCollector
from bapo_lightning.data.rollouts.collector import TrainerState
from bapo_lightning.data.rollouts.group_state import ArrayStore
from bapo_lightning.data.rollouts.observer import Ledger
from bapo_lightning.data.rollouts.regime import Regime
from bapo_lightning.data.rollouts.schedule import ScheduleRecorder, read_schedule
from bapo_lightning.data.rollouts.scheduled_collector import ScheduledCollector
from bapo_lightning.errors import DataError, EngineError

NUM_RUNS = 24
NUM_PROBLEMS = 7
FILES = ("ledger.jsonl", "schedule.jsonl")


class TrainingRun:
    """The trainer's side of `RolloutDataModule` without tensors. All that happens to it follows from `seed`,
    but for what the engine does, and when.
    """

    def __init__(self, folder, seed, schedule=None, kill_rate=0.0, death_rate=0.0, engine_seed=1):
        folder.mkdir()
        rng = random.Random(seed)
        self.folder, self.seed, self.schedule = folder, seed, schedule
        self.kill_rate, self.death_rate, self.engine_seed = kill_rate, death_rate, engine_seed
        self.groups_per_batch, self.num_batches = rng.randint(1, 4), rng.randint(2, 6)
        updates, partial = rng.randint(1, 4), rng.random() < 0.5
        max_age = updates - 1 + rng.randint(0, 8)
        widest = self.groups_per_batch * ((max_age + 1) // updates - 1) + 1
        window = rng.choice([None, rng.randint(1, widest)])
        action, tokens = (rng.choice(["evict", "mask"]), rng.randint(1, 6)) if partial else ("evict", None)
        self.regime = Regime("async", 1, updates, 6, True, max_age, action, tokens, window=window)
        self.rules = {"admission": DynamicSampling(rng.randint(1, 3))} if rng.random() < 0.4 else {}
        self.slow_engine, self.slow_trainer = rng.choice([(0, 0), (3e-4, 0), (0, 3e-4), (3e-4, 3e-4)])
        self.version = self.clock = 0
        self.seen, self.kills = [], 0
        self.open()

    def open(self):
        """A new process: everything that is not in a checkpoint is gone."""
        self.scheduler = scheduler(
            ScriptedEngine(6, self.engine_seed, dies=self.engine_dies),
            self.regime,
            self.groups_per_batch,
            self.num_batches,
            NUM_PROBLEMS,
            observers=[Ledger(self.folder / FILES[0]), ScheduleRecorder(self.folder / FILES[1])],
            rules=self.rules,
        )
        sampler = self.scheduler.sampler
        self.engine = sampler.engine
        if self.schedule is None:
            self.collector = AsyncCollector(self.scheduler, sampler, self.push, self.groups_per_batch, 100.0)
        else:
            self.collector = ScheduledCollector(
                self.scheduler, sampler, self.push, self.groups_per_batch, self.schedule
            )

    def engine_dies(self):
        if self.schedule is None and random.random() < 0.3:
            time.sleep(self.slow_engine)
        return random.random() < self.death_rate

    def push(self):
        self.engine.load_weights(None, self.version)

    def chance(self, what):
        return random.Random(f"{self.seed}/{what}/{self.clock}").random()

    @property
    def state(self):
        return TrainerState(self.version, self.clock)

    def train(self):
        saved = self.save()
        updates = self.regime.updates_per_rollout_batch
        while self.clock < updates * self.num_batches:
            if self.clock % updates:
                self.collector.between_updates(self.state)
            else:
                groups = self.collector.next_groups(self.groups_per_batch, self.state)
                self.check_ages(groups)
                self.seen.append([(group.epoch, group.problem.id, str(group.samples)) for group in groups])
            self.read_metrics()
            time.sleep(self.slow_trainer)
            self.version += self.chance("skip") > 0.1
            self.clock += 1
            if self.chance("validation") < 0.15:
                with self.collector.exclusive_engine(self.state):
                    if self.engine.version != self.version:
                        self.push()
            if self.chance("checkpoint") < 0.4:
                saved = self.save()
            if random.random() < self.kill_rate:
                self.kill(saved)
        self.collector.close()
        with self.scheduler.lock:
            self.collector.note("end")
            self.scheduler.drop_rest(self.version)
        return self

    def check_ages(self, groups):
        for group in groups:
            trained = group.newest_version if self.regime.stale_action == "mask" else group.oldest_version
            last_use = self.version + self.regime.updates_per_rollout_batch - 1
            assert 0 <= last_use - trained <= self.regime.age_bound

    def read_metrics(self):
        with self.scheduler.lock:
            self.collector.note("metrics")
            counts = asdict(self.scheduler.statistics.take())
            counts |= {"running": len(self.scheduler.running), "ready": self.scheduler.num_ready}
        self.seen.append({name: count for name, count in counts.items() if "seconds" not in name})

    def save(self):
        store = ArrayStore()
        place = self.collector.state_dict(store)
        with self.scheduler.lock:
            state = self.scheduler.state_dict(store), place, self.engine.version
        return state, store.state_dict(), self.version, self.clock, list(self.seen)

    def kill(self, saved):
        """The old process's thread may still be in a pass; it must not write on, as a dead one would not."""
        self.collector.close()
        (state, place, engine_version), arrays, self.version, self.clock, seen = saved
        self.seen, self.kills = list(seen), self.kills + 1
        self.open()
        store = ArrayStore.from_state_dict(arrays)
        self.scheduler.load_state_dict(state, store)
        self.collector.load_state_dict(place, store)
        if engine_version == self.version:
            self.push()

    def files(self):
        return [(self.folder / name).read_text() for name in FILES]


def followed(recorded, folder, **options):
    return TrainingRun(folder, recorded.seed, read_schedule(recorded.folder), **options).train()


@pytest.mark.parametrize("kill_rate", [0.0, 0.2])
def test_a_followed_schedule_gives_the_same_run(tmp_path, kill_rate):
    kills, kinds = 0, Counter()
    for seed in range(NUM_RUNS):
        rates = {"kill_rate": kill_rate, "death_rate": 0.02 if seed % 4 == 0 else 0.0}
        recorded = TrainingRun(tmp_path / f"{seed}", seed, **rates).train()
        again = followed(recorded, tmp_path / f"{seed}-again", kill_rate=kill_rate)
        assert again.files() == recorded.files(), seed
        assert again.seen == recorded.seen, seed
        kills += again.kills
        kinds += Counter(json.loads(line)["do"] for line in recorded.files()[1].splitlines())
    assert (kills > 0) == (kill_rate > 0)
    assert all(kinds[do] for do in ("evict", "validation", "sync"))  # the runs reach those paths


def test_another_policy_under_the_same_schedule_keeps_batches_whole_and_ages_within_the_bound(tmp_path):
    added = 0
    for seed in range(NUM_RUNS):
        recorded = TrainingRun(tmp_path / f"{seed}", seed).train()
        other = followed(recorded, tmp_path / f"{seed}-other", engine_seed=2)  # responses of other lengths
        assert len(other.seen) == len(recorded.seen)
        added += sum(seen["added_passes"] for seen in other.seen if isinstance(seen, dict))
        again = followed(other, tmp_path / f"{seed}-again", engine_seed=2)
        assert again.files() == other.files()  # with the passes that were added
    assert added > 0


def test_a_death_of_the_engine_ends_a_run_that_follows_a_schedule(tmp_path):
    recorded = TrainingRun(tmp_path / "recorded", 0).train()
    with pytest.raises(EngineError, match="resume=auto goes on from the last checkpoint"):
        followed(recorded, tmp_path / "again", death_rate=1.0)


def test_a_schedule_that_is_missing_damaged_or_open_is_refused(tmp_path):
    with pytest.raises(DataError, match=r"there is no .*schedule.jsonl"):
        read_schedule(tmp_path)
    path = tmp_path / "schedule.jsonl"
    for content in ("", "{", "[1]\n"):
        path.write_text(content)
        with pytest.raises(DataError, match="is no schedule, or damaged"):
            read_schedule(tmp_path)
    path.write_text('{"do": "visit"}\n')
    with pytest.raises(DataError, match="did not reach its end; finish it with resume="):
        read_schedule(tmp_path)
