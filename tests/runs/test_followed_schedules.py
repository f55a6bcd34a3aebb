"""Asynchronous runs that follow a recorded schedule (`regime.schedule`), through the main job."""

import json

import pytest
import torch
from tests.commands import train

SETTINGS = ["regime=async", "scale.num_rollout_batches=4", "callbacks.validation.every=6"]
PARTIAL = ["regime.partial_tokens=8", "regime.max_age=11"]
CHILD = ["rollout=hf_child", "rollout.engine.cpu_threads=1"]


def trained(folder, *overrides):
    done = train(*SETTINGS, f"run_folder={folder}", *overrides)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def rows(folder):
    """The metrics without those that are times or rates."""
    parsed = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{name: value for name, value in row.items() if "second" not in name} for row in parsed]


def weights(folder):
    (path,) = folder.glob("checkpoints/update000016/trainer.ckpt")
    return torch.load(path, weights_only=True)["state_dict"]


@pytest.mark.parametrize("overrides", [[], [*PARTIAL, *CHILD]], ids=["whole", "partial, in a child"])
def test_a_run_that_follows_a_schedule_equals_the_recorded_one_to_the_bit(tmp_path, overrides):
    recorded, again = tmp_path / "recorded", tmp_path / "again"
    trained(recorded, *overrides)
    trained(again, *overrides, f"regime.schedule={recorded}")
    assert rows(again) == rows(recorded)
    for name in ("ledger.jsonl", "schedule.jsonl"):
        assert (again / name).read_bytes() == (recorded / name).read_bytes()
    expected, found = weights(recorded), weights(again)
    assert all(torch.equal(found[name], weight) for name, weight in expected.items())


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
