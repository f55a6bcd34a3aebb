"""Where mixed precision rounds, and where it does not."""

import random
import threading
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from bapo_lightning.system.errors import ConfigError
from bapo_lightning.system.precision import (
    FULL,
    MIXED,
    attention_on_cpu,
    blocks,
    head_products,
    is_mixed,
    needs_whole_heads,
    outside_of_autocast,
)
from bapo_lightning.system.random_states import random_states, random_states_kept, set_random_states

CPU = torch.device("cpu")


class Step:
    device = CPU

    @outside_of_autocast
    def product(self, left, right):
        """A matrix product."""
        return left @ right


def test_blocks_round_products_and_nothing_else_does():
    ones = torch.ones(2, 2)
    with blocks(True, CPU):
        assert (ones @ ones).dtype == torch.bfloat16 and (ones + ones).dtype == torch.float32
        assert Step().product(ones, ones).dtype == torch.float32
        with blocks(False, CPU):
            assert (ones @ ones).dtype == torch.float32
    assert (ones @ ones).dtype == torch.float32
    assert Step.product.__doc__ == "A matrix product."


def test_attention_on_a_cpu_gets_float32_under_autocast_alone():
    seen = []

    @attention_on_cpu
    def attention(module, query, key, value, mask, *, scaling):
        seen.append((query.dtype, value.dtype, torch.is_autocast_enabled("cpu"), mask, scaling))

    half = torch.ones(1, dtype=torch.bfloat16)
    attention(None, half, half, half, None, scaling=2.0)
    with blocks(True, CPU):
        attention(None, half, half, half, None, scaling=2.0)
    assert seen == [
        (torch.bfloat16, torch.bfloat16, False, None, 2.0),
        (torch.float32, torch.float32, False, None, 2.0),
    ]


def test_cuda_has_kernels_for_shared_heads_in_16_bits_alone_which_autocast_makes(monkeypatch):
    full, half = (SimpleNamespace(is_cuda=True, dtype=dtype) for dtype in (torch.float32, torch.bfloat16))
    assert needs_whole_heads(full) and not needs_whole_heads(half)
    assert not needs_whole_heads(SimpleNamespace(is_cuda=False, dtype=torch.float32))
    monkeypatch.setattr(torch, "is_autocast_enabled", lambda device: device == "cuda")
    assert not needs_whole_heads(full)


def test_the_heads_products_switch_the_process_back_when_the_last_thread_leaves():
    before = torch.get_float32_matmul_precision()
    inside, leave = threading.Event(), threading.Event()

    def other():
        with head_products(True, CPU):
            inside.set()
            leave.wait(10)

    thread = threading.Thread(target=other)
    with head_products(True, CPU):
        thread.start()
        assert inside.wait(10)
    assert torch.get_float32_matmul_precision() == "medium"
    leave.set()
    thread.join()
    assert torch.get_float32_matmul_precision() == before
    with head_products(False, CPU):
        assert torch.get_float32_matmul_precision() == before


def test_a_precision_that_cannot_be_trained_in_is_refused():
    assert is_mixed(MIXED) and not is_mixed(FULL)
    with pytest.raises(ConfigError, match=r"trainer\.precision=16-mixed is none of its values"):
        is_mixed("16-mixed")


def draw():
    return random.gauss(0, 1), random.random(), np.random.standard_normal(), float(torch.randn(()))


def test_the_same_is_drawn_again_after_a_round_through_a_file(tmp_path):
    draw()  # so that the second halves of Gaussian pairs are pending
    torch.save(random_states(), tmp_path / "states.pt")
    first = [draw() for _ in range(3)]
    set_random_states(torch.load(tmp_path / "states.pt", weights_only=True))
    assert [draw() for _ in range(3)] == first


def test_draws_inside_are_as_if_they_had_not_been():
    states = random_states()
    first = draw()
    set_random_states(states)
    with random_states_kept():
        draw()
    assert draw() == first
