"""The trainer's side of `RolloutDataModule` without tensors, with an engine that follows a script."""

import json
import random
import time
from collections import Counter
from dataclasses import asdict, replace

from tests.data.rollouts.scripted import Expert, Hints, ScriptedEngine, ruled, scheduler
from tests.data.rollouts.turns import FEEDBACK, Counting, TurnEngine, TurnTokenizer, random_turns, talking

from bapo_lightning.data.rollouts.admission import DynamicSampling
from bapo_lightning.data.rollouts.collector import TrainerState, collector_for
from bapo_lightning.data.rollouts.conversations import ReplyJournal
from bapo_lightning.data.rollouts.group_state import ArrayStore
from bapo_lightning.data.rollouts.observer import Ledger
from bapo_lightning.data.rollouts.schedule import ScheduleRecorder

NUM_PROBLEMS = 7
FILES = ("ledger.jsonl", "schedule.jsonl")


class TrainingRun:
    """All that happens to it follows from `seed`, but for what the engine does, and when. With `helped`, an
    expert answers in every group, and all-wrong groups get hints; with `talks`, an environment answers;
    if `filtered`, a third of the responses is not trained on. A `schedule` is followed.
    """

    def __init__(
        self, folder, seed, regime, schedule=None, kill_rate=0.1, death_rate=None, engine_seed=1,
        helped=False, talks=False, filtered=False,
    ):  # fmt: skip
        folder.mkdir()
        rng = random.Random(seed)
        self.folder, self.seed, self.schedule = folder, seed, schedule
        self.kill_rate, self.engine_seed, self.helped = kill_rate, engine_seed, helped
        self.groups_per_batch, self.num_batches = rng.randint(1, 4), rng.randint(2, 6)
        self.rules = {"admission": DynamicSampling(rng.randint(1, 3))} if rng.random() < 0.4 else {}
        slow = rng.choice([(0, 0), (3e-4, 0), (0, 3e-4), (3e-4, 3e-4)])
        self.slow_engine, self.slow_trainer = slow
        self.death_rate = rng.choice([0, 0, 0.02]) if death_rate is None else death_rate
        self.regime = regime(rng, self.groups_per_batch)
        self.environment, self.workers = (Counting(random_turns), rng.choice([0, 2])) if talks else (None, 0)
        if helped:
            self.rules |= {"expert": Expert(), "hints": Hints()}
        if filtered:
            self.rules |= ruled(keeps=lambda each: (each.rollout.length + seed) % 3 > 0).by_name
        self.version = self.clock = self.oldest = self.kills = 0
        self.seen, self.helps = [], Counter()  # origins in a group, and its hint
        self.open()

    def open(self):
        """A new process: everything that is not in a checkpoint is gone."""
        make_engine = ScriptedEngine if self.environment is None else TurnEngine
        engine = make_engine(self.regime.max_new_tokens, self.engine_seed, dies=self.engine_dies)
        files = [Ledger(self.folder / FILES[0]), ScheduleRecorder(self.folder / FILES[1])]
        sizes = (self.groups_per_batch, self.num_batches, NUM_PROBLEMS)
        self.scheduler = scheduler(engine, self.regime, *sizes, observers=files, rules=self.rules)
        if self.environment is not None:
            sampler = replace(self.scheduler.sampler, tokenizer=TurnTokenizer())
            self.scheduler.sampler = talking(sampler, self.environment, workers=self.workers)
            self.scheduler.sampler.conversations.journal = ReplyJournal(self.folder / "replies.jsonl")
        self.engine = self.scheduler.sampler.engine
        parts = self.scheduler, self.scheduler.sampler, self
        self.collector = collector_for(*parts, self.groups_per_batch, self.schedule)

    def engine_dies(self):
        if self.schedule is None and random.random() < 0.3:
            time.sleep(self.slow_engine)
        return random.random() < self.death_rate

    def push(self):
        overlaps = self.regime.async_generation and self.schedule is None
        (self.engine.hand_over if overlaps else self.engine.load_weights)(None, self.version)

    refresh_engine = hand_over_weights = push_weights = push

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
                self.use(self.collector.next_groups(self.groups_per_batch, self.state))
            self.read_metrics()
            time.sleep(self.slow_trainer)
            self.version += self.chance("skip") > 0.1  # a skipped update leaves the version
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

    def use(self, groups):
        assert len(groups) == self.groups_per_batch
        self.seen.append(groups)
        for group in groups:
            self.helps[len({item.rollout.origin for item in group.samples}), group.hint] += 1
            trained = group.newest_version if self.regime.stale_action == "mask" else group.oldest_version
            age = self.version + self.regime.updates_per_rollout_batch - 1 - trained  # at the last use
            assert trained <= self.version and 0 <= age <= self.regime.age_bound
            assert group.oldest_version <= group.ready_version <= self.version
            self.oldest = max(self.oldest, age)
            for sample in group.samples if self.environment is not None else ():
                self.check_turns(sample.rollout)

    def check_turns(self, rollout):
        """Every token is in its place, and every turn but one that was cut has its reply."""
        assert list(rollout.response_ids) == list(range(rollout.length))
        expected, turns = list(rollout.prompt_ids), [list(turn) for turn in rollout.turns]
        for number, turn in enumerate(turns):
            expected += turn + ([FEEDBACK + number] * (number + 1) if number + 1 < len(turns) else [])
        assert list(rollout.token_ids) == expected
        assert len(turns) - len(rollout.replies) in (0, 1) and all(len(turn) == 2 for turn in turns[:-1])
        self.helps["turns", len(turns)] += 1

    def read_metrics(self):
        with self.scheduler.lock:
            self.collector.note("metrics")
            counts = asdict(self.scheduler.statistics.take())
            counts |= {"running": len(self.scheduler.running), "ready": self.scheduler.num_ready}
        self.helps["filtered"] += counts["filtered_samples"]
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

    def fates(self):
        """Fates by reason; every draw has one."""
        rows = [json.loads(line) for line in self.files()[0].splitlines()]
        draws = Counter((row["epoch"], row["problem"]) for row in rows)
        ((epoch, position),) = self.scheduler.stream.places.values()
        assert set(draws.values()) == {1}
        assert len(draws) == epoch * (NUM_PROBLEMS + 1) + position + 1  # with the one that is too long
        assert all(sum(1 for key in draws if key[0] == done) == NUM_PROBLEMS + 1 for done in range(epoch))
        assert sum(row["fate"] == "trained" for row in rows) == self.groups_per_batch * self.num_batches
        return Counter((row["fate"], row.get("reason")) for row in rows)
