"""A run whose W&B process is killed goes on to its end."""

import os
import signal

import psutil
import pytest
from tests.commands import Command, command_line, wait_until


@pytest.mark.slow
def test_a_run_outlives_the_process_of_w_and_b(tmp_path):
    folder = tmp_path / "run"
    overrides = ["debug=fast", "experiment=additions", "scale.num_rollout_batches=5", "logger=wandb"]
    process = Command("bapo_lightning.cli.train", [*overrides, f"run_folder={folder}"])
    wait_until((folder / "metrics.jsonl").exists, process)
    (core,) = [
        child
        for child in psutil.Process(process.pid).children(recursive=True)
        if "wandb-core" in command_line(child)
    ]
    os.kill(core.pid, signal.SIGKILL)
    output, errors = process.communicate()
    assert process.returncode == 0
    assert "finished after 40 updates" in output and errors.count("W&B is lost") == 1
    assert (folder / "metrics.jsonl").read_text().count("\n") == 40
