"""What this machine must have, missing on purpose."""

import os

import torch
from tests.configuration.compositions import found


def test_a_gpu_that_is_not_there_is_named(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    (problem,) = found("trainer.accelerator=gpu")
    assert problem.startswith(
        "trainer.accelerator=gpu: no NVIDIA GPU was found; write trainer.accelerator=cpu"
    )
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    problems = found("trainer.accelerator=gpu", "trainer.devices=4", "strategy=ddp")
    assert any("trainer.devices=4: 2 GPUs were found; write trainer.devices=2" in text for text in problems)


def test_a_folder_that_cannot_be_written_to_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, mode: path != tmp_path)
    (problem,) = found(f"run_folder={tmp_path}/run")
    assert problem.endswith(f"{tmp_path} is not writable; write another output_root")
