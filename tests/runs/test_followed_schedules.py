"""Asynchronous runs that follow a recorded schedule (`regime.schedule`), through the main job."""

import pytest
from tests.commands import train
from tests.runs.written import rows, same, weights

SETTINGS = ["regime=async", "scale.num_rollout_batches=4", "callbacks.validation.every=6"]
PARTIAL = ["regime.partial_tokens=8", "regime.max_age=11"]
CHILD = ["rollout=hf_child", "rollout.engine.cpu_threads=1"]


def trained(folder, *overrides):
    done = train(*SETTINGS, f"run_folder={folder}", *overrides)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("overrides", [[], [*PARTIAL, *CHILD]], ids=["whole", "partial, in a child"])
def test_a_run_that_follows_a_schedule_equals_the_recorded_one_to_the_bit(tmp_path, overrides):
    recorded, again = tmp_path / "recorded", tmp_path / "again"
    trained(recorded, *overrides)
    trained(again, *overrides, f"regime.schedule={recorded}")
    assert rows(again) == rows(recorded)
    for name in ("ledger.jsonl", "schedule.jsonl"):
        assert (again / name).read_bytes() == (recorded / name).read_bytes()
    assert same(weights(again, 16), weights(recorded, 16))


def test_another_objective_under_the_same_schedule_and_what_does_not_fit_it(tmp_path):
    recorded, other = tmp_path / "recorded", tmp_path / "other"
    trained(recorded)
    trained(other, "algorithm=grpo", "algorithm.bounds.high=1.01", f"regime.schedule={recorded}")
    ages = [[row["staleness/age_mean"] for row in rows(run)] for run in (recorded, other)]
    assert ages[0] == ages[1]
    longer = train(
        *SETTINGS, "regime.max_age=9", "scale.num_rollout_batches=8", f"regime.schedule={recorded}"
    )
    assert longer.returncode == 1
    assert f"regime.max_age=9, but the run of regime.schedule={recorded} has 7; write" in longer.stderr
    assert "scale.num_rollout_batches=8, but the run of" in longer.stderr
    missing = train(*SETTINGS, "regime.schedule=outputs/nowhere")
    assert missing.returncode == 1
    assert "regime.schedule=outputs/nowhere: " in missing.stderr and "Traceback" not in missing.stderr
    useless = train("regime=replay", f"regime.schedule={recorded}")
    assert "without regime.async_generation has no effect" in useless.stderr
