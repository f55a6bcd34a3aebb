"""A GPU that torch cannot use is no machine without one: nobody trains on the CPU unawares."""

import pytest
import torch
from tests.configuration.compositions import validated

from bapo_lightning import host
from bapo_lightning.configuration import machine
from bapo_lightning.configuration.machine import check_machine
from bapo_lightning.errors import MachineError

DRIVER = "535.129.03"


@pytest.fixture(autouse=True)
def unused(monkeypatch):
    """This machine has a GPU, and a driver that is too old for its torch; the model of every run is here."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(host, "has_nvidia_gpu", lambda: True)
    monkeypatch.setattr(host, "driver_version", lambda: DRIVER)
    monkeypatch.setattr(machine, "hub_problem", lambda path: None)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


@pytest.mark.parametrize("accelerator", ["auto", "gpu", "cuda"])
@pytest.mark.parametrize("experiment", ["bapo_7b_lora", "quickstart"])
def test_a_run_is_refused_with_the_reason_and_the_way_to_the_cpu(accelerator, experiment):
    config = validated(f"experiment={experiment}", f"trainer.accelerator={accelerator}", "plan.ignore=true")
    with pytest.raises(MachineError) as refused:
        check_machine(config)
    (problem,) = refused.value.problems
    assert problem.startswith("GPUs: 1 needed (trainer.devices=1), none that can be used: torch ")
    assert f"needs NVIDIA's driver 580 or newer, and this one is {DRIVER}; update it" in problem
    assert problem.endswith("; or write trainer.accelerator=cpu")


def test_who_asks_for_the_cpu_gets_it():
    assert check_machine(validated("trainer.accelerator=cpu")) == []


@pytest.mark.parametrize("hidden", ["", "-1"])
def test_who_hides_the_gpus_asks_for_the_cpu(hidden, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", hidden)
    assert check_machine(validated()) == []
