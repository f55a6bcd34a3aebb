"""Asynchronous runs that follow a recorded schedule (`regime.schedule`), through the main job."""

import json

import pytest
from tests.commands import train_to_end
from tests.configuration.compositions import found, validated
from tests.runs.written import rows, same, weights

from bapo_lightning.runs.inputs import read_inputs, read_recorded_schedule
from bapo_lightning.system.errors import ConfigError

SETTINGS = ["regime=async", "callbacks.validation.every=6"]
PARTIAL_IN_A_CHILD = [
    *("regime.partial_tokens=8", "regime.max_age=11"),
    *("rollout=hf_child", "rollout.engine.cpu_threads=1"),
]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    folder = tmp_path_factory.mktemp("recorded") / "run"
    train_to_end(folder, 4, *SETTINGS)
    return folder


def follow(recorded, again, *overrides):
    """Checks that a run under the schedule of another is that one to the bit."""
    said = train_to_end(again, 4, *SETTINGS, *overrides, f"regime.schedule={recorded}")
    number = (recorded / "schedule.jsonl").read_text().count("\n")
    assert f"followed {number} rows of a recorded schedule; 0 passes were added" in said
    assert rows(again) == rows(recorded)
    for name in ("ledger.jsonl", "schedule.jsonl"):
        assert (again / name).read_bytes() == (recorded / name).read_bytes()
    assert same(weights(again, 16), weights(recorded, 16))


def test_a_run_that_follows_a_schedule_equals_the_recorded_one_to_the_bit(recorded, tmp_path):
    follow(recorded, tmp_path / "again")


def test_time_of_a_real_asynchronous_run_is_that_of_the_trainers_thread_and_the_rest(recorded):
    seconds = json.loads((recorded / "summary.json").read_text())["seconds"]
    updates = [json.loads(line) for line in (recorded / "metrics.jsonl").read_text().splitlines()]
    trainers = [sum(row[f"time/{part}_seconds"] for part in ("update", "sync", "wait")) for row in updates]
    assert sum(trainers) < sum(row["time/step_seconds"] for row in updates)
    assert all(row["time/wait_seconds"] > 0 for row in updates)  # also after a validation that synced weights
    assert 0 < seconds["rollout"] == pytest.approx(sum(row["time/rollout_seconds"] for row in updates))
    # Rollouts and rewards ran beside training, and are not taken from what is left.
    assert seconds["other"] == pytest.approx(seconds["total"] - sum(trainers))
    # Outside of updates: the start, validations, checkpoints, pictures.
    assert seconds["other"] > seconds["total"] - sum(row["time/step_seconds"] for row in updates) > 0


@pytest.mark.slow
def test_partial_rollouts_of_an_engine_in_a_child_follow_a_schedule_as_well(tmp_path):
    train_to_end(tmp_path / "recorded", 4, *SETTINGS, *PARTIAL_IN_A_CHILD)
    follow(tmp_path / "recorded", tmp_path / "again", *PARTIAL_IN_A_CHILD)


def test_another_objective_trains_under_the_same_schedule(recorded, tmp_path):
    other = tmp_path / "other"
    objective = "algorithm=grpo", "algorithm.bounds.high=1.01"
    train_to_end(other, 4, *SETTINGS, *objective, f"regime.schedule={recorded}")
    ages = [[row["staleness/age_mean"] for row in rows(run)] for run in (recorded, other)]
    assert ages[0] == ages[1]


@pytest.mark.parametrize("event", ["visit", "sync", "pass", "sampled", "scored", "take", "metrics"])
def test_a_schedule_that_lacks_a_row_is_refused_whichever_it_is(recorded, event):
    path = recorded / "schedule.jsonl"
    whole = path.read_text()
    lines = whole.splitlines(keepends=True)
    number = next(number for number, line in enumerate(lines) if f'"do": "{event}"' in line)
    path.write_text("".join([*lines[:number], *lines[number + 1 :]]))
    config = validated("debug=fast", *SETTINGS, f"regime.schedule={recorded}")
    try:
        with pytest.raises(ConfigError, match=r"schedule\.jsonl differs from what its run recorded"):
            read_recorded_schedule(config, ())
    finally:
        path.write_text(whole)


def test_a_row_behind_the_last_checkpoint_that_cannot_stand_there_is_refused(recorded):
    path = recorded / "schedule.jsonl"
    whole, end = path.read_text(), '{"do": "end"}\n'
    assert whole.endswith(end)
    path.write_text(whole.removesuffix(end) + '{"do": "evict", "groups": ["0/1+1"]}\n' + end)
    settings = *SETTINGS, "scale.num_rollout_batches=4", f"regime.schedule={recorded}"
    config = validated("debug=fast", *settings)
    try:
        row = whole.count("\n")
        with pytest.raises(ConfigError, match=rf"row {row} of schedule\.jsonl cannot follow those before it"):
            read_recorded_schedule(config, read_inputs(config).problems.train)
    finally:
        path.write_text(whole)


def test_what_does_not_fit_a_schedule_is_refused(recorded):
    longer = "regime.max_age=9", "scale.num_rollout_batches=8", f"regime.schedule={recorded}"
    with pytest.raises(ConfigError) as refused:
        read_recorded_schedule(validated("debug=fast", "regime=async", *longer), ())
    text = f"regime.max_age=9, but the run of regime.schedule={recorded} has 7; write"
    assert text in str(refused.value)
    assert "scale.num_rollout_batches=8, but the run of" in str(refused.value)
    with pytest.raises(ConfigError, match=r"regime\.schedule=outputs/nowhere: "):
        read_recorded_schedule(validated("regime=async", "regime.schedule=outputs/nowhere"), ())
    (useless,) = found("regime=replay", f"regime.schedule={recorded}")
    assert "without regime.async_generation has no effect" in useless
