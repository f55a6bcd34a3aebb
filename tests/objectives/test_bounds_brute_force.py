"""The curves and the search against loops in numpy, and Algorithm 1 as a loop."""

import numpy as np
import pytest
import torch

from bapo_lightning.objectives.bounds import contribution_curves, search_bounds

NUM_CASES = 200  # per combination of kind, order and measure: 1600 in all
SHAPES = (
    "any", "ties", "no_positives", "no_negatives", "all_clipped", "one_token", "ratio_one", "all_masked",
    "no_tokens",
)  # fmt: skip


def contributions(tokens, low, high, kind):
    """P and N at one pair of bounds, token by token."""
    positive = negative = 0.0
    for ratio, advantage, mask, weight in zip(*tokens, strict=True):
        if not mask:
            continue
        if kind == "surrogate":
            value = weight * min(ratio * advantage, min(max(ratio, low), high) * advantage)
        else:
            clipped = (advantage > 0 and ratio > high) or (advantage < 0 and ratio < low)
            value = 0.0 if clipped else weight * ratio * advantage
        positive += max(value, 0.0)
        negative += max(-value, 0.0)
    return positive, negative


def contribution(positive, negative, measure):
    denominator = positive + negative if measure == "share" else negative
    if denominator == 0:
        return np.nan if positive == 0 else np.inf
    return positive / denominator


def algorithm_1(tokens, lows, highs, target, kind, order, measure):
    """While the target is missed: one step of the bound whose turn it is. Returns low, high, value, met."""
    low = high = 0
    start = contributions(tokens, lows[0], highs[0], kind)
    if start == (0.0, 0.0):
        return lows[0], highs[0], np.nan, True
    value = contribution(*start, measure)
    while not value >= target and (low + 1 < len(lows) or high + 1 < len(highs)):
        upper_turn = high + 1 < len(highs) if order == "upper_first" else low + 1 == len(lows)
        low, high = (low, high + 1) if upper_turn else (low + 1, high)
        value = contribution(*contributions(tokens, lows[low], highs[high], kind), measure)
    return lows[low], highs[high], value, value >= target


def random_case(rng, shape):
    """Tokens (ratio, advantage, mask, weight), lows, highs; the numbers are multiples of 1/64, so that every
    sum is exact.
    """
    size = {"one_token": 1, "no_tokens": 0}.get(shape, rng.integers(2, 20))
    lows = np.sort(rng.choice(np.arange(20, 64), rng.integers(1, 7), replace=False)) / 64
    highs = np.sort(rng.choice(np.arange(65, 200), rng.integers(1, 9), replace=False)) / 64
    ratio = rng.integers(1, 220, size) / 64
    if shape == "ties":
        ratio = rng.choice(np.concatenate([lows, highs]), size)
    elif shape == "ratio_one":
        ratio = np.ones(size)
    advantage = rng.integers(-8, 9, size) / 4
    if shape == "all_clipped":
        ratio = np.where(advantage > 0, highs[-1] + 1, lows[0] / 2)
    elif shape == "no_positives":
        advantage = -abs(advantage)
    elif shape == "no_negatives":
        advantage = abs(advantage)
    mask = np.zeros(size, bool) if shape == "all_masked" else rng.random(size) < 0.85
    return (ratio, advantage, mask, rng.integers(0, 9, size) / 8), lows, highs


@pytest.mark.parametrize("measure", ["share", "ratio"])
@pytest.mark.parametrize("order", ["upper_first", "lower_first"])
@pytest.mark.parametrize("kind", ["gradient", "surrogate"])
def test_curves_and_search_equal_the_brute_force(kind, order, measure):
    rng = np.random.default_rng(0)
    for case in range(NUM_CASES):
        tokens, lows, highs = random_case(rng, SHAPES[case % len(SHAPES)])
        target = float(rng.choice([0.25, 0.4, 0.5, 0.6, 1.0, 1.5]))
        dtype, made = torch.float32 if case % 2 else torch.float64, map(torch.as_tensor, tokens)
        tensors = [each if each.dtype == torch.bool else each.to(dtype) for each in made]
        grids = torch.as_tensor(lows).to(dtype), torch.as_tensor(highs).to(dtype)
        positive, negative = contribution_curves(*tensors, *grids, kind)
        assert positive.tolist() == [contributions(tokens, lows[0], high, kind)[0] for high in highs]
        assert negative.tolist() == [contributions(tokens, low, highs[0], kind)[1] for low in lows]
        found = [value.item() for value in search_bounds(positive, negative, *grids, target, order, measure)]
        expected = algorithm_1(tokens, lows, highs, target, kind, order, measure)
        assert found == pytest.approx([float(value) for value in expected], rel=1e-15, nan_ok=True), case
