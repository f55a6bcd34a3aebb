"""An asynchronous run that follows a recorded schedule takes, drops and counts the same, whatever happened
when it was recorded: slow engines, deaths, skipped updates, validations, kills.
"""

import json
from collections import Counter
from dataclasses import replace
from random import Random

import pytest
from tests.data.rollouts.scripted import ScriptedEngine, scheduler
from tests.data.rollouts.training_run import NUM_PROBLEMS, TrainingRun

from bapo_lightning.data.rollouts.collector import TrainerState
from bapo_lightning.data.rollouts.regime import Regime
from bapo_lightning.data.rollouts.schedule import read_schedule
from bapo_lightning.data.rollouts.schedule_check import contradiction
from bapo_lightning.data.rollouts.scheduled_collector import ScheduledCollector
from bapo_lightning.system.errors import DataError, EngineError
from bapo_lightning.system.run_folder.journal import Journal

NUM_RUNS = 36
PROBLEMS = {str(number) for number in range(NUM_PROBLEMS)}


def asynchronous(rng, groups_per_batch):
    updates, partial = rng.randint(1, 4), rng.random() < 0.5
    max_age = updates - 1 + rng.randint(0, 8)
    widest = groups_per_batch * ((max_age + 1) // updates - 1) + 1
    window = rng.choice([None, rng.randint(1, widest)])
    action, tokens = (rng.choice(["evict", "mask"]), rng.randint(1, 6)) if partial else ("evict", None)
    return Regime("async", 1, updates, 6, True, max_age, action, tokens, window=window)


def stream(rng, groups_per_batch):
    """The same without passes."""
    regime = asynchronous(rng, groups_per_batch)
    return replace(regime, stream=rng.choice(["keep", "recompute"]), partial_tokens=None)


def recorded_run(folder, seed, regime=asynchronous, **options):
    return TrainingRun(folder, seed, regime, **{"kill_rate": 0.0, "death_rate": 0.0} | options).train()


def followed(recorded, folder, **options):
    return recorded_run(folder, recorded.seed, schedule=read_schedule(recorded.folder), **options)


@pytest.mark.parametrize("kill_rate", [0.0, 0.2])
def test_a_followed_schedule_gives_the_same_run(tmp_path, kill_rate):
    kills, kinds = 0, Counter()
    for seed in range(NUM_RUNS):
        rates = {"kill_rate": kill_rate, "death_rate": 0.05 if seed % 3 == 0 else 0.0}
        recorded = recorded_run(tmp_path / f"{seed}", seed, **rates)
        again = followed(recorded, tmp_path / f"{seed}-again", kill_rate=kill_rate)
        assert again.files() == recorded.files(), seed
        assert again.seen == recorded.seen, seed
        assert contradiction(read_schedule(recorded.folder), 6, PROBLEMS) is None, seed
        kills += again.kills
        kinds += Counter(json.loads(line)["do"] for line in recorded.files()[1].splitlines())
    assert (kills > 0) == (kill_rate > 0)
    assert all(kinds[do] for do in ("evict", "validation", "sync"))  # the runs reach those paths


@pytest.mark.parametrize("talks", [False, True])
@pytest.mark.parametrize("kill_rate", [0.0, 0.2])
def test_a_followed_stream_gives_the_same_run(tmp_path, caplog, kill_rate, talks):
    kinds = Counter()
    for seed in range(NUM_RUNS // 2):
        options = {"regime": stream, "kill_rate": kill_rate, "talks": talks}
        recorded = recorded_run(tmp_path / f"{seed}", seed, **options, death_rate=0.02 * (seed % 3 == 0))
        again = followed(recorded, tmp_path / f"{seed}-again", **options | {"kill_rate": 0.0})
        assert again.files() == recorded.files(), seed
        assert again.seen == recorded.seen, seed
        assert contradiction(read_schedule(recorded.folder), 6, PROBLEMS) is None, seed
        kinds += Counter(json.loads(line)["do"] for line in recorded.files()[1].splitlines())
    assert all(kinds[do] for do in ("validation", "sync"))
    assert bool(kinds["resumed"]) == (kill_rate > 0) and bool(kinds["replies"]) == talks
    assert "exception calling callback" not in caplog.text


@pytest.mark.parametrize("event", [{"do": "resumed"}, {"do": "sampled", "finished": [], "lost": True}])
def test_an_engine_has_forgotten_what_the_recorded_one_lost_when_new_weights_come(event):
    """Else their probe would be sampled in another batch."""
    began = {"do": "pass", "version": 0, "evicted": [], "requests": []}
    middle = [began, {"do": "sampled", "finished": []}] if event["do"] == "resumed" else [began]
    visits = [{"do": "visit", "clock": clock, "version": 0} for clock in range(3)]
    rows = [visits[0], {"do": "sync"}, *middle, visits[1], event, visits[2]]
    engine = ScriptedEngine(50)
    regime = replace(asynchronous(Random(1), 1), stream="keep", partial_tokens=None)
    source = scheduler(engine, regime, 2, 4)
    collector = ScheduledCollector(source, source.sampler, lambda: engine.load_weights(None, 0), 2, rows)
    for clock, has_some in enumerate((False, True, False)):
        collector.between_updates(TrainerState(0, clock))
        assert bool(engine.running) is has_some


def test_a_run_that_follows_a_stream_and_is_killed_keeps_ages_and_fates(tmp_path):
    """What was running begins anew, with other random numbers and in another order."""
    kills = 0
    for seed in range(NUM_RUNS // 2):
        options = {"regime": stream, "talks": seed % 2 == 0}
        recorded = recorded_run(tmp_path / f"{seed}", seed, **options)
        again = followed(recorded, tmp_path / f"{seed}-again", **options, kill_rate=0.2)
        assert again.fates()["trained", None] == recorded.fates()["trained", None]
        kills += again.kills
    assert kills > 5


@pytest.mark.parametrize("regime", [asynchronous, stream])
def test_another_policy_under_a_schedule_keeps_batches_whole_and_ages_within_the_bound(regime, tmp_path):
    added = 0
    for seed in range(NUM_RUNS):
        options = {"regime": regime}
        recorded = recorded_run(tmp_path / f"{seed}", seed, **options)
        options["engine_seed"] = 2  # responses of other lengths
        other = followed(recorded, tmp_path / f"{seed}-other", **options)
        assert len(other.seen) == len(recorded.seen)
        added += sum(seen["added_passes"] for seen in other.seen if isinstance(seen, dict))
        again = followed(other, tmp_path / f"{seed}-again", **options)
        assert again.files() == other.files()  # with the passes that were added
    assert added > 0


def test_a_death_of_the_engine_ends_a_run_that_follows_a_schedule(tmp_path):
    recorded = recorded_run(tmp_path / "recorded", 0)
    with pytest.raises(EngineError, match="resume=auto continues from the last checkpoint"):
        followed(recorded, tmp_path / "again", death_rate=1.0)


def test_a_problem_may_be_named_with_what_ends_a_line_elsewhere(tmp_path):
    rows = [{"do": "evict", "groups": ["0/a\u2028b\u0085c"]}, {"do": "end"}]
    Journal(tmp_path / "schedule.jsonl").append(rows)
    assert read_schedule(tmp_path) == rows


def test_a_schedule_that_is_missing_damaged_or_open_is_refused(tmp_path):
    with pytest.raises(DataError, match=r"there is no .*schedule.jsonl"):
        read_schedule(tmp_path)
    path = tmp_path / "schedule.jsonl"
    damaged = [
        '{"do": "rm -rf"}', '{"do": ["visit"]}', '{"do": "visit", "clock": 0, "version": "x"}',
        '{"do": "visit", "clock": true, "version": 0}', '{"do": "end", "more": 1}', '{"do": "take"}',
        '{"do": "pass", "version": null, "evicted": [], "requests": []}', "[" * 200_000,
    ]  # fmt: skip
    for content in ("", "{", "[1]\n", *(f'{row}\n{{"do": "end"}}\n' for row in damaged)):
        path.write_text(content)
        with pytest.raises(DataError, match="is not a schedule, or is damaged"):
            read_schedule(tmp_path)
    path.write_text('{"do": "visit", "clock": 0, "version": 0}\n')
    with pytest.raises(DataError, match="did not reach its end; finish it with resume="):
        read_schedule(tmp_path)


COURSE = [
    {"do": "visit", "clock": 0, "version": 0}, {"do": "sync"},
    {"do": "pass", "version": 0, "evicted": [], "requests": [["0/1", [0, 1]], ["0/2", [0, 1]]]},
    {"do": "sampled", "finished": ["0/1", "0/2"], "rounds": [[0, 1], [2, 3]]},
    {"do": "scored", "ready": ["0/1"], "rejected": ["0/2"]},
    {"do": "visit", "clock": 1, "version": 1},
    {"do": "take", "groups": ["0/1"], "filtered": ["0/2"]},
    {"do": "pass", "version": 1, "evicted": [], "requests": [["0/3", [0, 1]], ["1/1", [1]]]},
    {"do": "sampled", "finished": ["0/3"], "steps": 21},
    {"do": "scored", "ready": ["0/3"], "rejected": []}, {"do": "evict", "groups": ["0/3"]}, {"do": "end"},
]  # fmt: skip


@pytest.mark.parametrize(("row", "field", "values"), [
    (5, "clock", [-1]), (5, "version", [-1, 2]), (7, "version", [-1, 2, 999]),
    (7, "requests", [
        ["0/3"], [["0/3"]], [["0/3", "0"]], [["0/3", [0.0]]], [["0/3", [True]]], [["0/3", [2]]],
        [["0/3", [-1]]], [["0/3", [0, 0]]], [[3, [0]]], [["3", [0]]], [["x/3", [0]]], [["0/99", [0]]],
        [["0/1", [0]]], [["0/3", [0]], ["0/3", [1]]], [[["0/3"], [0]]],
    ]),
    (7, "evicted", [["0/9"], ["0/1"], [0], [[]]]),
    (3, "finished", [["0/9"], ["0/1", "0/1"], [0], [None]]),
    (3, "rounds", [[0], [["0"]], [[4]], [[0, 0]], [[-1]]]),
    (8, "steps", [7, 0, -8]),
    (4, "ready", [["0/3"], ["0/2"], [[]]]), (9, "rejected", [["0/3"], ["1/1"]]),
    (6, "groups", [["0/3"], ["0/2"], [1]]), (6, "filtered", [["0/1"], ["1/1"]]),
    (10, "groups", [["0/1"], ["1/1"], ["0/3", "0/3"]]),
])  # fmt: skip
def test_a_row_that_cannot_stand_where_it_does_is_found(row, field, values):
    assert contradiction(COURSE, 2, PROBLEMS) is None
    for value in values:
        changed = [*COURSE[:row], {**COURSE[row], field: value}, *COURSE[row + 1 :]]
        assert contradiction(changed, 2, PROBLEMS) == row + 1, value
    assert contradiction([*COURSE[:7], COURSE[6]], 2) == 8  # taken twice
    assert contradiction(COURSE[5:], 2) == 1  # what came before is lost
    assert contradiction([COURSE[0], {**COURSE[5], "clock": 2}], 2) == 2  # an update is lost
