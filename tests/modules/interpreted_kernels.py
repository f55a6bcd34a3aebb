"""Tests of Triton's kernels in its interpreter, which `TRITON_INTERPRET=1` asks for before its import."""

import pytest
import torch

from bapo_lightning.modules import score_kernels, token_scores

SHAPES = [(3, 7), (2, score_kernels.BLOCK), (2, 2 * score_kernels.BLOCK + 5)]


def given(rows, vocabulary):
    generator = torch.Generator().manual_seed(0)
    logits = 3 * torch.randn(rows, vocabulary, generator=generator)
    targets = torch.randint(vocabulary, (rows,), generator=generator)
    return logits, targets, torch.randn(rows, generator=generator), torch.randn(rows, generator=generator)


def scored(score, logits, targets, scale):
    found = [torch.empty(len(logits)) for _ in range(4)]
    score(logits, targets, scale, *found)
    return found


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("scale", [1.0, 1 / 0.6])
def test_scores_are_those_of_blocks_and_logits_stay(shape, scale) -> None:
    logits, targets, *_ = given(*shape)
    found = scored(score_kernels.score_rows, logits, targets, scale)
    assert torch.equal(logits, given(*shape)[0])
    torch.testing.assert_close(found, scored(token_scores._score_rows, logits, targets, scale))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("asked", [(True, False), (False, True), (True, True)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gradients_are_those_of_blocks(shape, asked, dtype) -> None:
    logits, targets, *upstream = given(*shape)
    _, entropy, peak, norm = scored(score_kernels.score_rows, logits, targets, 0.5)
    wanted = [gradient if is_asked else None for gradient, is_asked in zip(upstream, asked, strict=True)]
    arguments = (0.5, dtype, False, targets, peak, norm, entropy, *wanted)
    found, expected = (
        turn(logits.clone(), *arguments) for turn in (score_kernels.turn_rows, token_scores._turn_rows)
    )
    assert found.dtype == dtype
    torch.testing.assert_close(found, expected)
