"""Tests of Liger's kernels in Triton's interpreter, which `TRITON_INTERPRET=1` asks for before its import.

The interpreter lacks two things that compiled kernels have: numbers with a fraction are float32 there, and
libdevice has an `rsqrt`. Both are added here; the kernels are Liger's own.
"""

import sys

import numpy as np
import pytest
import triton
import triton.language as tl
from tests.modules.policy.families import family_folder
from tests.modules.policy.test_packing import batch_of, loss_and_gradients, rollouts
from triton.runtime import interpreter

from bapo_lightning.modules.policy.factory import build_policy
from bapo_lightning.modules.policy.options import ModelOptions

CONVERTED = interpreter._implicit_cvt


def converted(given):
    if isinstance(given, float):
        return tl.tensor(interpreter.TensorHandle(np.array([given], np.float32), tl.float32), tl.float32)
    return CONVERTED(given)


@triton.jit
def rsqrt(x):
    return tl.rsqrt(x)


@pytest.fixture(autouse=True)
def as_compiled(monkeypatch):
    from liger_kernel.ops import rms_norm  # noqa: F401

    monkeypatch.setattr(interpreter, "_implicit_cvt", converted)
    monkeypatch.setattr(sys.modules["liger_kernel.ops.rms_norm"], "rsqrt", rsqrt)


@pytest.mark.parametrize("packing", ["none", "padding_free"])
@pytest.mark.parametrize("family", ["llama", "qwen2"])
def test_loss_and_gradients_are_those_without_it(family, packing, tmp_path) -> None:
    path, batch = family_folder(family, tmp_path), batch_of(rollouts())
    loss, gradients = loss_and_gradients(build_policy(ModelOptions(path, packing=packing), 0.8), batch, 40)
    policy = build_policy(ModelOptions(path, packing=packing, liger=True), 0.8)
    assert policy.model.model.norm.forward.__module__.startswith("liger_kernel")
    found, own = loss_and_gradients(policy, batch, 40)
    assert found == pytest.approx(loss, rel=1e-5)
    for name, gradient in gradients.items():
        assert (own[name] - gradient).norm() <= 1e-5 * gradient.norm(), name
