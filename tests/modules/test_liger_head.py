"""Liger's head by its PyTorch version, which it takes without a Hopper GPU; and when it is taken at all."""

import sys
from dataclasses import replace
from types import ModuleType

import pytest
import torch
from tests.modules.policy.families import family_folder
from tests.modules.policy.test_packing import batch_of, loss_and_gradients, rollouts
from tests.modules.test_token_scores import gradients, inputs

from bapo_lightning.modules import liger_head
from bapo_lightning.modules.liger_head import has_liger_head, is_hopper, liger_scores, takes
from bapo_lightning.modules.policy.factory import build_policy
from bapo_lightning.modules.policy.options import ModelOptions
from bapo_lightning.modules.token_scores import token_scores
from bapo_lightning.types import Candidates

KERNEL = "liger_kernel.ops.cutedsl.ops.fused_scaled_cross_entropy_sm90"
HALVES = {"rtol": 0.03, "atol": 0.03}  # Liger's PyTorch version rounds the logits to 8 bits


@pytest.fixture
def hopper(monkeypatch):
    """Makes every device a GPU with the kernel."""
    monkeypatch.setattr(liger_head, "is_hopper", lambda device: True)
    monkeypatch.setattr(liger_head, "has_liger_head", lambda: True)


def with_candidates(sample):
    """The rollout, with the sampled token and another one as candidates at each place."""
    (segment,) = sample.segments
    noted = Candidates.of_places([[(token, -0.5), ((token + 1) % 24, -0.9)] for token in segment.token_ids])
    return replace(sample, segments=(replace(segment, candidates=noted),))


@pytest.mark.parametrize("factor", [0.0, 0.3])
@pytest.mark.parametrize("temperature", [1.0, 0.6])
@pytest.mark.parametrize(("halves", "close"), [(False, {}), (True, HALVES)])
def test_scores_and_gradients_are_those_of_the_own_head(halves, close, temperature, factor):
    *weights, targets = inputs(600, width=16, vocabulary=50)  # two of Liger's chunks
    with torch.no_grad():
        weights[1] *= 0.25
    found = liger_scores(*weights, targets, temperature, bool(factor), halves)
    rounded = [each.bfloat16().float() for each in weights] if halves else weights
    expected = token_scores(*rounded, targets, temperature, entropy_requires_grad=bool(factor))
    assert [score.dtype for score in found] == [torch.float32] * 2
    assert found[0].requires_grad and found[1].requires_grad is bool(factor)
    torch.testing.assert_close(found, expected, **close)
    slopes = [gradients(scores, *weights, factor) for scores in (found, expected)]
    for own, other in zip(*slopes, strict=True):
        assert own.dtype is torch.float32
        assert (own - other).norm() <= (0.02 if halves else 1e-5) * other.norm()


def test_the_entropy_alone_has_its_gradient():
    *weights, targets = inputs()
    found, expected = (
        torch.autograd.grad(score(*weights, targets, 0.7, **how)[1].sum(), weights)
        for score, how in (
            (liger_scores, {"entropy_requires_grad": True, "half_factors": False}),
            (token_scores, {"entropy_requires_grad": True}),
        )
    )
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize(("capability", "is_one"), [((9, 0), True), ((8, 0), False), ((10, 0), False)])
def test_a_hopper_gpu_is_told_by_its_capability(capability, is_one, monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    assert is_hopper(torch.device("cuda")) is is_one
    assert not is_hopper(torch.device("cpu"))


@pytest.mark.parametrize("module", [None, ModuleType(KERNEL)])
def test_the_kernel_is_there_if_it_can_be_imported(module, monkeypatch):
    monkeypatch.setitem(sys.modules, KERNEL, module)
    assert has_liger_head.__wrapped__() is (module is not None)


@pytest.mark.parametrize(("missing", "taken"), [
    ({}, True), ({"is_hopper": lambda device: False}, False), ({"has_liger_head": lambda: False}, False),
])  # fmt: skip
def test_the_kernel_takes_16_bits_on_its_gpu_and_at_least_one_token(missing, taken, hopper, monkeypatch):
    for name, function in missing.items():
        monkeypatch.setattr(liger_head, name, function)
    floats = torch.ones(2, 4), torch.ones(3, 4)
    halves = tuple(each.bfloat16() for each in floats)
    assert takes(*floats, True) is takes(*halves, False) is taken
    assert not takes(*floats, False)
    assert not takes(floats[0], halves[1], False)
    assert not takes(floats[0][:0], floats[1], True)


@pytest.mark.parametrize(("head", "is_mixed", "noted", "calls"), [
    ("liger", True, False, 1), ("auto", True, False, 1), ("own", True, False, 0),
    ("auto", False, False, 0), ("auto", True, True, 0),
])  # fmt: skip
def test_a_policy_takes_it_where_it_can(head, is_mixed, noted, calls, tmp_path, hopper, monkeypatch):
    taken = []

    def counted(*given, **how):
        taken.append(given)
        return liger_scores(*given, **how)

    monkeypatch.setattr(liger_head, "liger_scores", counted)
    path, samples = family_folder("llama", tmp_path), rollouts()  # with a tied head
    policies = [build_policy(ModelOptions(path, head=each), 0.8, is_cut=noted) for each in (head, "own")]
    if noted:
        samples = [with_candidates(sample) for sample in samples]
    batch = batch_of(samples)
    if is_mixed:
        for policy in policies:
            policy.mix_precision()
    (found, own), (loss, expected) = (loss_and_gradients(policy, batch, 100) for policy in policies)
    assert len(taken) == calls
    assert found == pytest.approx(loss, rel=0.02)
    for name, gradient in expected.items():
        assert (own[name] - gradient).norm() <= (0.05 if calls else 0.0) * gradient.norm(), name
