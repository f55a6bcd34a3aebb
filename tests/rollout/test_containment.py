"""What a guest in the trainer's process does is kept inside its calls; vLLM as the guest: `vllm`."""

import gc
import os
import random
import subprocess
import sys
from contextlib import suppress

import numpy as np
import pytest
import torch
import torch.distributed as dist

from bapo_lightning.rollout.vllm.containment import Containment, default_group_kept


def test_a_guest_finds_what_it_left_and_the_host_what_it_had(monkeypatch):
    monkeypatch.setenv("KEPT", "host")
    monkeypatch.delenv("MADE", raising=False)
    set_num_threads, synchronize = torch.set_num_threads, torch.accelerator.synchronize
    contained = Containment({"GIVEN": "1"}, eager=True)

    def states():
        return random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()

    before = states()
    with contained():
        assert os.environ["GIVEN"] == "1"
        os.environ |= {"KEPT": "guest", "MADE": "guest"}
        torch.set_num_threads = torch.accelerator.synchronize = guests_own = lambda *_: None
        random.random(), np.random.random(), torch.rand(1)
        gc.freeze()
    assert (os.environ["KEPT"], "MADE" in os.environ, "GIVEN" in os.environ) == ("host", False, False)
    assert (torch.set_num_threads, torch.accelerator.synchronize) == (set_num_threads, synchronize)
    assert states() == before
    assert gc.get_freeze_count() == 0
    with contained():
        assert (os.environ["KEPT"], os.environ["MADE"]) == ("guest", "guest")
        assert torch.set_num_threads is guests_own
    assert torch.set_num_threads is set_num_threads


def test_the_host_gets_everything_back_after_an_error_too(monkeypatch):
    monkeypatch.setenv("KEPT", "host")
    before = torch.get_rng_state()
    with suppress(ValueError), Containment({}, eager=False)():
        os.environ["KEPT"] = "guest"
        torch.rand(1)
        raise ValueError
    assert os.environ["KEPT"] == "host"
    assert torch.equal(torch.get_rng_state(), before)


def test_nobody_destroys_the_default_group_and_everybody_its_own(tmp_path):
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/rendezvous", rank=0, world_size=1)
    try:
        with default_group_kept():
            own = dist.new_group([0])
            dist.destroy_process_group(own)
            dist.destroy_process_group()
        assert dist.is_initialized()
        dist.all_reduce(torch.ones(1))
    finally:
        dist.destroy_process_group()


@pytest.mark.slow
def test_a_call_without_progress_ends_the_process_and_shows_where_it_stood():
    program = """
import time
from bapo_lightning.rollout.vllm.containment import Deadline
deadline = Deadline(3)
with deadline():
    for _ in range(5):
        time.sleep(1.1)
        deadline.progress()
print("progress counts", flush=True)
with deadline():
    def stuck_in_a_kernel():
        time.sleep(60)
    stuck_in_a_kernel()
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=50)
    assert done.returncode == 1
    assert done.stdout == "progress counts\n"
    assert "Timeout" in done.stderr and "stuck_in_a_kernel" in done.stderr
