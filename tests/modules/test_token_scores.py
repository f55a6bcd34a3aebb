import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tests.objectives.test_bounds import Operators

from bapo_lightning.modules import token_scores as module
from bapo_lightning.modules.token_scores import mean_logp, token_scores
from bapo_lightning.system.chunks import chunk_elements


def naive_scores(hidden, head_weight, targets, temperature=1.0):
    log_probs = torch.log_softmax(hidden @ head_weight.T / temperature, dim=-1)
    return log_probs.gather(1, targets[:, None]).squeeze(1), -(log_probs.exp() * log_probs).sum(-1)


def inputs(num_tokens=7, width=5, vocabulary=11, dtype=torch.float32, seed=0):
    generator = torch.Generator().manual_seed(seed)
    hidden = torch.randn(num_tokens, width, generator=generator, dtype=dtype).requires_grad_()
    head_weight = torch.randn(vocabulary, width, generator=generator, dtype=dtype).requires_grad_()
    return hidden, head_weight, torch.randint(vocabulary, (num_tokens,), generator=generator)


def gradients(scores, hidden, head_weight, entropy_factor=0.0):
    logp, entropy = scores
    factors = torch.linspace(-1, 2, len(logp), dtype=logp.dtype)
    loss = (factors * logp).sum()
    if entropy_factor:
        loss = loss + entropy_factor * (factors.flip(0) * entropy).sum()
    return torch.autograd.grad(loss, (hidden, head_weight))


def test_scores_of_a_hand_computed_distribution():
    hidden = torch.tensor([[1.0], [0.0]])
    head_weight = torch.tensor([[0.0], [1.0986123]])  # logits 0 and log 3: probabilities 1/4 and 3/4
    logp, entropy = token_scores(hidden, head_weight, torch.tensor([1, 0]))
    assert logp.tolist() == pytest.approx([-0.2876821, -0.6931472], abs=1e-6)
    assert entropy.tolist() == pytest.approx([0.5623351, 0.6931472], abs=1e-6)


@pytest.mark.parametrize("factor", [0.0, 0.3])
@pytest.mark.parametrize("temperature", [1.0, 0.6])
@pytest.mark.parametrize("chunk_tokens", [1, 3, 7, None])
def test_scores_and_gradients_equal_the_naive_ones(chunk_tokens, temperature, factor, monkeypatch):
    monkeypatch.setattr(module, "CHUNK_ELEMENTS", 25)  # without a size, 2 tokens of 11 logits
    *weights, targets = inputs()
    fused = token_scores(*weights, targets, temperature, chunk_tokens, entropy_requires_grad=bool(factor))
    naive = naive_scores(*weights, targets, temperature)
    assert fused[0].requires_grad and fused[1].requires_grad is bool(factor)
    torch.testing.assert_close(fused, naive)
    found, expected = (gradients(scores, *weights, factor) for scores in (fused, naive))
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("entropy_factor", [0.0, 0.3])
@pytest.mark.parametrize("chunk_tokens", [1, 3, None])
def test_log_probs_of_other_tokens_and_their_gradients_are_the_naive_ones(chunk_tokens, entropy_factor):
    hidden, head_weight, targets = inputs(dtype=torch.float64)
    others = torch.randint(11, (7, 4), generator=torch.Generator().manual_seed(1))
    others[:, 0] = targets  # among others, or twice
    others[3] = 5
    fused = token_scores(hidden, head_weight, targets, 0.7, chunk_tokens, True, others=others)
    every = torch.log_softmax(hidden @ head_weight.T / 0.7, dim=-1)
    naive = *naive_scores(hidden, head_weight, targets, 0.7), every.gather(1, others)
    torch.testing.assert_close(fused, naive)
    weights = torch.linspace(-1, 3, 28, dtype=torch.float64).view(7, 4)

    def slopes(scores):
        loss = (weights * scores[2]).sum() + scores[0].square().sum() + entropy_factor * scores[1].sum()
        return torch.autograd.grad(loss, (hidden, head_weight), retain_graph=True)

    torch.testing.assert_close(slopes(fused), slopes(naive))
    only = [torch.autograd.grad(each[2].sum(), (hidden, head_weight)) for each in (fused, naive)]
    torch.testing.assert_close(*only)


@pytest.mark.parametrize("chunk_tokens", [1, 3, 7])
def test_gradients_pass_gradcheck_in_float64(chunk_tokens):
    hidden, head_weight, targets = inputs(dtype=torch.float64)

    def scores(hidden, head_weight):
        return token_scores(hidden, head_weight, targets, 0.7, chunk_tokens, entropy_requires_grad=True)

    for each in (scores, lambda *inputs: scores(*inputs)[0], lambda *inputs: scores(*inputs)[1]):
        assert torch.autograd.gradcheck(each, (hidden, head_weight))


@pytest.mark.parametrize("temperature", [1.0, 0.6])
@pytest.mark.parametrize(("dtype", "rounding"), [
    (torch.float64, 1e-12), (torch.float32, 1e-5), (torch.bfloat16, 1e-5),
])  # fmt: skip
def test_the_mean_over_the_vocabulary_is_that_of_all_log_probs(temperature, dtype, rounding):
    hidden, head_weight, targets = (tensor.detach() for tensor in inputs(9, 64, 50, torch.float64))
    hidden, head_weight = hidden.to(dtype), head_weight.to(dtype)
    logp, _ = token_scores(hidden, head_weight, targets, temperature, chunk_tokens=4)
    logits = hidden.double() @ head_weight.double().T / temperature
    found = mean_logp(hidden, head_weight, targets, logp, temperature)
    assert found.dtype == logp.dtype
    torch.testing.assert_close(found.double(), logits.log_softmax(-1).mean(-1), rtol=rounding, atol=rounding)


def test_half_precision_inputs_are_scored_in_float32_with_gradients_of_their_own_dtype():
    hidden, head_weight, targets = (tensor.detach() for tensor in inputs(9, width=64, vocabulary=50))
    halves = [tensor.bfloat16().requires_grad_() for tensor in (hidden, head_weight)]
    exact = [half.detach().float().requires_grad_() for half in halves]
    fused, naive = token_scores(*halves, targets, 0.9, chunk_tokens=4), naive_scores(*exact, targets, 0.9)
    assert [score.dtype for score in fused] == [torch.float32, torch.float32]
    torch.testing.assert_close(fused, naive, rtol=1e-5, atol=1e-5)
    expected = [gradient.bfloat16() for gradient in gradients(naive, *exact)]
    for found, gradient in zip(gradients(fused, *halves), expected, strict=True):
        assert found.dtype == torch.bfloat16
        torch.testing.assert_close(found, gradient, rtol=2**-7, atol=1e-6)


def test_large_logits_neither_overflow_nor_lose_the_certain_token():
    hidden = torch.tensor([[1000.0], [-1000.0]], requires_grad=True)
    head_weight = torch.tensor([[1.0], [-1.0], [0.0]], requires_grad=True)
    logp, entropy = token_scores(hidden, head_weight, torch.tensor([0, 0]))
    assert logp.tolist() == [0.0, -2000.0]
    assert entropy.tolist() == [0.0, 0.0]
    found = torch.autograd.grad(logp.sum(), (hidden, head_weight))
    assert all(gradient.isfinite().all() for gradient in found)


def test_only_the_gradients_needed_are_computed():
    hidden, head_weight, targets = inputs()
    naive = naive_scores(hidden, head_weight, targets)
    expected_hidden, expected_weight = gradients(naive, hidden, head_weight)
    factors = torch.linspace(-1, 2, 7)
    (factors * token_scores(hidden, head_weight.detach(), targets, chunk_tokens=3)[0]).sum().backward()
    torch.testing.assert_close(hidden.grad, expected_hidden)
    assert head_weight.grad is None
    (factors * token_scores(hidden.detach(), head_weight, targets, chunk_tokens=3)[0]).sum().backward()
    torch.testing.assert_close(head_weight.grad, expected_weight)
    with torch.no_grad():
        assert not token_scores(hidden, head_weight, targets)[0].requires_grad


def test_a_second_backward_pass_gives_the_same_gradients_to_the_bit():
    hidden, head_weight, targets = inputs()
    logp = token_scores(hidden, head_weight, targets, chunk_tokens=3)[0]
    first = torch.autograd.grad(logp.sum(), (hidden, head_weight), retain_graph=True)
    second = torch.autograd.grad(logp.sum(), (hidden, head_weight))
    torch.testing.assert_close(first, second, rtol=0, atol=0)


def test_no_tokens_give_empty_scores_and_zero_gradients():
    hidden, head_weight, targets = inputs(num_tokens=0)
    logp, entropy = token_scores(hidden, head_weight, targets)
    assert logp.shape == entropy.shape == (0,)
    grad_hidden, grad_weight = torch.autograd.grad(logp.sum(), (hidden, head_weight))
    assert grad_hidden.shape == (0, 5)
    assert grad_weight.tolist() == [[0.0] * 5] * 11


def test_no_tensor_of_all_tokens_times_vocabulary_is_ever_made():
    hidden, head_weight, targets = inputs(num_tokens=64, width=2, vocabulary=100)
    with Operators() as operators:
        logp, entropy = token_scores(hidden, head_weight, targets, chunk_tokens=4, entropy_requires_grad=True)
        (logp + entropy).sum().backward()
    assert operators.largest == 4 * 100


@pytest.mark.parametrize(("num_tokens", "products"), [(3, 3), (7, 7 + 4), (9, 9 + 6)])
def test_a_whole_chunk_of_three_is_multiplied_once_and_all_others_twice(num_tokens, products, monkeypatch):
    product, rows = module._product, []
    monkeypatch.setattr(module, "_product", lambda *given: rows.append(len(given[0])) or product(*given))
    hidden, head_weight, targets = inputs(num_tokens)
    logp, _ = token_scores(hidden, head_weight, targets, chunk_tokens=3)
    logp.sum().backward()
    assert sum(rows) - num_tokens == products  # without the gradient of the hidden states


@pytest.mark.parametrize(("gigabytes", "elements"), [
    (8, 1 << 27), (24, 1 << 27), (40, 1 << 28), (48, 1 << 28), (80, 1 << 29), (141, 1 << 30), (288, 1 << 30),
])  # fmt: skip
def test_a_chunk_depends_on_the_size_of_the_card_alone(gigabytes, elements):
    found = 0.99 * gigabytes * 2**30  # torch counts GiB, without what the card keeps: 85.0e9 for an H100
    assert chunk_elements(gigabytes * 1e9) == chunk_elements(found) == elements


@pytest.mark.parametrize(("change", "message"), [
    ({"temperature": 0.0}, "temperature must be positive, got 0.0"),
    ({"chunk_tokens": 0}, "chunk_tokens must be at least 1, got 0"),
    ({"targets": torch.zeros(3, dtype=torch.long)}, r"got \[7, 5\], \[11, 5\], \[3\]"),
    ({"head_weight": torch.zeros(11, 4)}, r"got \[7, 5\], \[11, 4\], \[7\]"),
])  # fmt: skip
def test_arguments_that_cannot_be_are_refused(change, message):
    hidden, head_weight, targets = inputs()
    with pytest.raises(ValueError, match=message):
        token_scores(**{"hidden": hidden, "head_weight": head_weight, "targets": targets, **change})


@pytest.mark.parametrize("tests", ["interpreted_kernels.py", "policy/interpreted_liger.py"])
def test_kernels_for_gpus_compute_the_same_in_tritons_interpreter(tests) -> None:
    file = Path(__file__).parent / tests
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(file)]
    env = {**os.environ, "TRITON_INTERPRET": "1"}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
