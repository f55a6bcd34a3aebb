"""Weights in shared memory, when the process that hands them over is killed."""

import signal
import subprocess
import sys
from types import SimpleNamespace

import torch

from bapo_lightning.rollout import weight_transport
from bapo_lightning.rollout.weight_transport import PREFIX, remove_abandoned, weight_parts

HANDS_OVER = """
import sys, time
from pathlib import Path
from types import SimpleNamespace
import torch
from bapo_lightning.rollout import weight_transport

weight_transport.SHARED_MEMORY_FOLDER = Path(sys.argv[1])
source = SimpleNamespace(named_weights=lambda wanted: [("weight", torch.ones(1000))])
for part in weight_transport.weight_parts(source, part_megabytes=1):
    print("handing over", flush=True)
    time.sleep(600)
"""


def test_what_a_killed_trainer_left_is_removed_by_the_next_hand_over(tmp_path, monkeypatch):
    monkeypatch.setattr(weight_transport, "SHARED_MEMORY_FOLDER", tmp_path)
    command = [sys.executable, "-c", HANDS_OVER, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as trainer:
        assert trainer.stdout.readline() == "handing over\n"
        (left,) = tmp_path.glob(f"{PREFIX}{trainer.pid}-*")
        remove_abandoned()
        assert left.exists()  # its trainer lives
        trainer.send_signal(signal.SIGKILL)
    assert left.exists()
    source = SimpleNamespace(named_weights=lambda wanted: [("weight", torch.ones(3))])
    for part in weight_parts(source, part_megabytes=1):
        assert not left.exists() and part["names"] == ["weight"]
    assert list(tmp_path.iterdir()) == []
