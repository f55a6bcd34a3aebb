"""Whole runs whose engine is in a process of its own."""

import subprocess
import sys


def test_a_run_trains_on_what_the_same_engine_in_its_process_would_sample(tmp_path):
    for rollout in ("hf", "hf_child"):
        command = [
            sys.executable,
            "-m",
            "bapo_lightning.cli.train",
            "debug=fast",
            f"rollout={rollout}",
            f"run_folder={tmp_path / rollout}",
        ]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "hf" / "rollouts.jsonl").read_bytes() == (
        tmp_path / "hf_child" / "rollouts.jsonl"
    ).read_bytes()


def test_an_error_of_the_engines_start_ends_the_command_with_one_line(tmp_path):
    options = ["rollout=hf_child", "rollout.engine.start_seconds=0.1", f"run_folder={tmp_path / 'run'}"]
    done = subprocess.run(
        [sys.executable, "-m", "bapo_lightning.cli.train", *options],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert (
        done.returncode == 1
        and "error: the rollout engine did not start: it did not answer within 0.1 s" in done.stderr
    )
    assert "Traceback" not in done.stderr and not (tmp_path / "run").exists()
