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


RANKS = ("strategy=ddp", "trainer.devices=2", "trainer.accelerator=cpu", "rollout.placement=controller")


@pytest.mark.slow
@pytest.mark.parametrize("options", [(), ("regime=partial",), RANKS], ids=["replay", "partial", "two-ranks"])
def test_three_engines_train_to_the_bit_what_one_trains_that_samples_as_many_at_once(tmp_path, options):
    own = (*options, "cpu_threads=1", "callbacks.checkpoint.every=1000")
    for name, rollout in (("hf", ALONE), ("ray", FLEET)):
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
