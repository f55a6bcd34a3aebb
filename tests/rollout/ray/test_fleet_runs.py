"""Whole runs on a fleet."""

import pytest
from kill_and_resume import differences
from tests.commands import run_command, train

ALONE = ("rollout=hf", "rollout.engine.max_rows=8")
FLEET = (
    "rollout=ray",
    "rollout.engine.actors=3",
    "rollout.engine.cpus=0.5",
    "rollout.engine.cpu_threads=1",
    "rollout.engine.requests_per_call=8",
)


@pytest.mark.slow
def test_trainer_and_three_engines_on_the_same_devices_train_to_the_bit_what_one_process_does(tmp_path):
    """On a cluster that the command starts, with buffered groups; other regimes are in tests/ranks/ray."""
    own = ("regime=reuse", "scale.num_rollout_batches=2", "cpu_threads=1", "callbacks.checkpoint.every=1000")
    for name, rollout in (("hf", ALONE), ("ray", (*FLEET, "ray.ranks=together"))):
        done = train(*rollout, *own, f"run_folder={tmp_path / name}")
        assert done.returncode == 0, done.stdout + done.stderr
    assert differences(tmp_path / "hf", tmp_path / "ray") == []
    rollouts = [(tmp_path / name / "rollouts.jsonl").read_bytes() for name in ("hf", "ray")]
    assert rollouts[0] == rollouts[1]


@pytest.mark.slow
def test_a_cluster_that_is_not_there_ends_the_command_with_one_line(tmp_path):
    done = run_command(
        "bapo_lightning.cli.train", "rollout=ray", "ray.address=127.0.0.1:1", f"run_folder={tmp_path / 'run'}"
    )
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert "error: no Ray cluster could be joined at ray.address=127.0.0.1:1: " in done.stderr
    assert not (tmp_path / "run").exists()
