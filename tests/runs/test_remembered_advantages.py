"""Advantages that remember every problem go on after a kill as if there had been none."""

import signal

import pytest
import torch
from tests.commands import Command, run_command, wait_until

TRAIN = "bapo_lightning.cli.train"
SETTINGS = [
    "experiment=additions",
    "debug=fast",
    "regime=reuse",
    "scale.num_rollout_batches=3",
    "callbacks.validation.every=0",
    "callbacks.checkpoint.every=5",
]


def last_checkpoint(folder):
    """The memory and the weights at the end of a run."""
    path = max(folder.glob("checkpoints/update*"))
    data, trainer = (torch.load(path / name, weights_only=True) for name in ("data.pt", "trainer.ckpt"))
    return data["data"]["stages"]["batch_advantages"], trainer["state_dict"]


@pytest.mark.parametrize(
    ("algorithm", "size"), [("spo", 1), pytest.param("dcpo_sas", 4, marks=pytest.mark.slow)]
)
def test_a_killed_run_remembers_what_an_uninterrupted_one_does(algorithm, size, tmp_path):
    settings = [*SETTINGS, f"algorithm={algorithm}", f"scale.group_size={size}"]
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    done = run_command(TRAIN, *settings, f"run_folder={whole}")
    assert done.returncode == 0, done.stderr
    process = Command(TRAIN, [*settings, f"run_folder={killed}"])
    rows = killed / "metrics.jsonl"
    wait_until(lambda: rows.exists() and rows.read_text().count("\n") >= 7, process)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    done = run_command(TRAIN, *settings, f"resume={killed}")
    assert done.returncode == 0, done.stderr
    (expected, expected_weights), (found, weights) = last_checkpoint(whole), last_checkpoint(killed)
    assert found == expected and len(found) >= 8
    for name, values in expected_weights.items():
        assert torch.equal(weights[name], values)
