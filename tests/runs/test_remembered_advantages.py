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
    path = max(folder.glob("checkpoints/update*"))
    return torch.load(path / "trainer.ckpt", weights_only=True)


def remembered(node):
    """The memory within a checkpoint."""
    if isinstance(node, dict) and "batch_advantages" in node:
        return node["batch_advantages"]
    values = node.values() if isinstance(node, dict) else ()
    return next((found for value in values if (found := remembered(value)) is not None), None)


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
    expected, found = last_checkpoint(whole), last_checkpoint(killed)
    assert remembered(found) == remembered(expected) and len(remembered(found)) >= 8
    for name, weights in expected["state_dict"].items():
        assert torch.equal(found["state_dict"][name], weights)
