"""Whole runs whose engine is in a process of its own."""

import pytest
from tests.commands import run_command, train


@pytest.mark.slow
def test_a_run_trains_on_what_the_same_engine_in_its_process_would_sample(tmp_path):
    for rollout in ("hf", "hf_child"):
        done = train(f"rollout={rollout}", f"run_folder={tmp_path / rollout}")
        assert done.returncode == 0, done.stdout + done.stderr
    in_process, child = (tmp_path / rollout / "rollouts.jsonl" for rollout in ("hf", "hf_child"))
    assert in_process.read_bytes() == child.read_bytes()


def test_an_error_of_the_engines_start_ends_the_command_with_one_line(tmp_path):
    options = ["rollout=hf_child", "rollout.engine.start_seconds=0.1", f"run_folder={tmp_path / 'run'}"]
    done = run_command("bapo_lightning.cli.train", *options)
    assert done.returncode == 1
    assert "error: the rollout engine did not start: it did not answer within 0.1 s" in done.stderr
    assert "Traceback" not in done.stderr and not (tmp_path / "run").exists()
