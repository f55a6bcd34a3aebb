"""Runs that lose their engine, their disk or their logger."""

import json
import os
import signal

import psutil
import pytest
from run_comparison import differences
from tests.commands import Command, command_line, train, wait_until

from bapo_lightning.system.run_folder.checkpoint import list_checkpoints

OWN = (
    "rollout.engine._target_=tests.rollout.odd_hf_engines.Mortal", "cpu_threads=1",
    "callbacks.checkpoint.every=1000", "callbacks.validation.every=0", "scale.num_rollout_batches=4",
)  # fmt: skip
REGIMES = [
    ("regime=partial",),
    ("regime=replay", "algorithm=dapo"),
    ("regime=on_policy", "callbacks.validation.every=1"),
]


@pytest.mark.slow
@pytest.mark.parametrize("regime", REGIMES, ids=["partial", "dynamic-sampling", "in-validation"])
def test_without_an_engine_a_run_ends_with_one_line_and_goes_on_as_if_nothing_had_been(tmp_path, regime):
    whole, lost = tmp_path / "whole", tmp_path / "lost"
    assert train(*OWN, *regime, f"run_folder={whole}").returncode == 0
    done = train(*OWN, *regime, f"run_folder={lost}", env={**os.environ, "ODD_DEATH": "2"})
    assert done.returncode == 1 and "error: no engine is left" in done.stderr
    assert "Traceback" not in done.stderr
    assert len(list_checkpoints(lost / "checkpoints")) == 1
    done = train(*OWN, *regime, f"run_folder={lost}", "resume=auto")
    assert done.returncode == 0, done.stderr
    found = differences(whole, lost)
    # A pass that was lost counts as a pass; a validation that was lost is not made again.
    assert len(found) <= 2 and all(each.startswith("metrics of update ") for each in found)


def test_a_full_disk_is_reported_in_one_sentence_and_nothing_is_lost(tmp_path):
    folder = tmp_path / "run"
    metrics = folder / "metrics.jsonl"
    settings = [
        *("experiment=additions", "debug=fast", "scale.num_rollout_batches=4",
          "callbacks.checkpoint.every=4"),
        *("callbacks.validation.every=0", f"run_folder={folder}"),
    ]  # fmt: skip
    run = Command("bapo_lightning.cli.train", settings)
    wait_until(lambda: any(folder.glob("checkpoints/update*")), run)
    (tmp_path / "full").symlink_to("/dev/full")
    metrics.rename(tmp_path / "rows")
    os.replace(tmp_path / "full", metrics)
    _, errors = run.communicate()
    assert run.returncode == 1 and "Traceback" not in errors
    assert f"error: there is no space left to write to {folder}; free some, and continue" in errors
    os.replace(tmp_path / "rows", metrics)
    done = train(*settings, "resume=auto")
    assert done.returncode == 0, done.stderr
    assert [json.loads(row)["step"] for row in metrics.read_text().splitlines()] == list(range(32))


@pytest.mark.slow
def test_a_run_outlives_the_process_of_w_and_b(tmp_path):
    folder = tmp_path / "run"
    overrides = ["debug=fast", "experiment=additions", "scale.num_rollout_batches=5", "logger=wandb"]
    process = Command("bapo_lightning.cli.train", [*overrides, f"run_folder={folder}"])
    wait_until((folder / "metrics.jsonl").exists, process)
    children = psutil.Process(process.pid).children(recursive=True)
    (core,) = [child for child in children if "wandb-core" in command_line(child)]
    os.kill(core.pid, signal.SIGKILL)
    output, errors = process.communicate()
    assert process.returncode == 0
    assert "finished after 40 updates" in output and errors.count("W&B is lost") == 1
    assert (folder / "metrics.jsonl").read_text().count("\n") == 40
