import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from bapo_lightning.objectives.bounds import (
    bound_grid,
    contribution_curves,
    positive_contribution,
    search_bounds,
)
from bapo_lightning.objectives.surrogate import clipped_surrogate

LOWS, HIGHS = torch.tensor([0.5, 0.75]), torch.tensor([1.25, 1.5, 2.0])
RATIO = torch.tensor([1.0, 1.5, 3.0, 0.5, 0.25, 1.0])
ADVANTAGE = torch.tensor([1.0, 2.0, 1.0, -1.0, -4.0, -2.0])
ALL = torch.ones(6, dtype=torch.bool)
GRIDS = bound_grid(0.6, 0.9, 0.02), bound_grid(1.2, 3.0, 0.05)


class Operators(TorchDispatchMode):
    """Collects the name of every operator that runs, and the size of the largest result."""

    def __init__(self):
        super().__init__()
        self.names, self.largest = [], 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(func.overloadpacket.__name__)
        result = func(*args, **(kwargs or {}))
        self.largest = max(self.largest, result.numel() if isinstance(result, torch.Tensor) else 0)
        return result


def random_tokens(seed, num_tokens=500):
    generator = torch.Generator().manual_seed(seed)
    ratio = torch.randn(num_tokens, generator=generator).mul(0.5).exp()
    advantage = torch.randn(num_tokens, generator=generator)
    mask = torch.rand(num_tokens, generator=generator) < 0.8
    return ratio, advantage, mask, torch.rand(num_tokens, generator=generator)


def test_the_gradient_curves_leave_clipped_tokens_out_and_keep_those_on_a_bound():
    positive, negative = contribution_curves(RATIO, ADVANTAGE, ALL, None, LOWS, HIGHS, "gradient")
    assert positive.tolist() == [1.0, 4.0, 4.0]  # 1, then the 1.5 * 2 exactly on its bound, never the 3
    assert negative.tolist() == [2.5, 2.0]  # 0.5 * 1 on its bound and 1 * 2, then only 1 * 2
    assert positive.dtype == negative.dtype == torch.float64


def test_the_surrogate_curves_count_clipped_tokens_with_their_clipped_value():
    positive, negative = contribution_curves(RATIO, ADVANTAGE, ALL, None, LOWS, HIGHS, "surrogate")
    assert positive.tolist() == [1.0 + 2.5 + 1.25, 1.0 + 3.0 + 1.5, 1.0 + 3.0 + 2.0]
    assert negative.tolist() == [0.5 + 2.0 + 2.0, 0.75 + 3.0 + 2.0]


@pytest.mark.parametrize("kind", ["gradient", "surrogate"])
def test_nothing_under_the_mask_is_used_not_even_nan(kind):
    ratio, advantage, weight = (torch.tensor([each, torch.nan, torch.inf]) for each in (1.0, 1.0, 0.5))
    advantage[1:] = torch.tensor([-1.0, 0.0])
    mask = torch.tensor([True, False, True])
    positive, negative = contribution_curves(ratio, advantage, mask, weight, LOWS, HIGHS, kind)
    assert positive.tolist() == [0.5, 0.5, 0.5]
    assert negative.tolist() == [0.0, 0.0]


@pytest.mark.parametrize(("kind", "expected"), [("gradient", [0.0, 0.0]), ("surrogate", [0.5, 0.75])])
def test_a_ratio_of_zero_stays_on_its_side(kind, expected):
    zeros, advantage = torch.zeros(2), torch.tensor([5.0, -1.0])
    positive, negative = contribution_curves(zeros, advantage, torch.ones(2), None, LOWS, HIGHS, kind)
    assert positive.tolist() == [0.0, 0.0, 0.0]
    assert negative.tolist() == expected


@pytest.mark.parametrize("kind", ["gradient", "surrogate"])
def test_bounds_of_zero_and_infinity_clip_nothing(kind):
    lows, highs = torch.tensor([0.0, 0.6]), torch.tensor([1.2, torch.inf])
    positive, negative = contribution_curves(RATIO, ADVANTAGE, ALL, None, lows, highs, kind)
    assert positive[1].item() == 7.0
    assert negative[0].item() == 3.5


@pytest.mark.parametrize("kind", ["gradient", "surrogate"])
def test_curves_of_parts_add_up_and_shape_does_not_matter(kind):
    tokens = random_tokens(seed=1)
    whole = contribution_curves(*tokens, *GRIDS, kind)
    split = zip(*(column.split(117) for column in tokens), strict=True)
    parts = [contribution_curves(*part, *GRIDS, kind) for part in split]
    for side in range(2):
        torch.testing.assert_close(
            torch.stack([part[side] for part in parts]).sum(0), whole[side], rtol=1e-12, atol=0
        )
    table = contribution_curves(*(tensor.view(20, 25).T for tensor in tokens), *GRIDS, kind)
    torch.testing.assert_close(table, whole, rtol=1e-12, atol=0)


@pytest.mark.parametrize("kind", ["gradient", "surrogate"])
def test_raising_a_bound_moves_the_share_one_way(kind):
    """The share rises with both bounds; that of the surrogate falls with the lower one."""
    sign = 1 if kind == "gradient" else -1
    for seed in range(50):
        positive, negative = contribution_curves(*random_tokens(seed), *GRIDS, kind)
        share = positive_contribution(positive[:, None], negative[None, :], "share")
        assert (share.diff(dim=0) >= 0).all() and (sign * share.diff(dim=1) >= 0).all()


def test_the_curves_are_the_sums_of_the_losses_own_terms():
    ratio, advantage, mask, weight = random_tokens(seed=3)
    low, high = torch.tensor([0.8]), torch.tensor([1.25])
    leaf = ratio.clone().requires_grad_()
    objective = weight * mask * clipped_surrogate(leaf, advantage, 0.8, 1.25)
    objective.sum().backward()
    # r d/dr = d/d(log pi)
    for kind, terms in (("surrogate", objective.detach()), ("gradient", leaf.grad * ratio)):
        curves = contribution_curves(ratio, advantage, mask, weight, low, high, kind)
        positive, negative = (float(terms[sign * advantage > 0].double().sum()) for sign in (1, -1))
        assert [curve.item() for curve in curves] == pytest.approx([positive, -negative], rel=1e-5)


@pytest.mark.parametrize(("order", "target", "expected"), [
    ("upper_first", 0.25, [0.5, 1.25, 0.25, True]), ("upper_first", 0.3, [0.5, 1.5, 0.4, True]),
    ("upper_first", 0.5, [0.5, 2.0, 0.5, True]), ("upper_first", 0.6, [0.75, 2.0, 0.75, True]),
    ("upper_first", 0.8, [0.75, 2.0, 0.75, False]), ("lower_first", 0.3, [0.75, 1.25, 0.5, True]),
    ("lower_first", 0.7, [0.75, 2.0, 0.75, True]),
])  # fmt: skip
def test_the_search_stops_at_the_first_bounds_that_meet_the_target(order, target, expected):
    curves = (torch.tensor(curve, dtype=torch.float64) for curve in ([1.0, 2.0, 3.0], [3.0, 1.0]))
    found = search_bounds(*curves, LOWS, HIGHS, target, order, "share")
    assert [value.item() for value in found] == expected


def test_at_a_ratio_of_one_the_curves_are_flat_and_the_target_may_be_a_tensor():
    advantage = torch.tensor([1.0, -1.0])
    curves = contribution_curves(torch.ones(2), advantage, torch.ones(2), None, LOWS, HIGHS)
    assert [curve.tolist() for curve in curves] == [[1.0, 1.0, 1.0], [1.0, 1.0]]
    found = search_bounds(*curves, LOWS, HIGHS, torch.tensor(0.5), "upper_first", "share")
    assert [value.item() for value in found] == [0.5, 1.25, 0.5, True]
    assert (found.low.dtype, found.low.dim(), found.met.dtype) == (torch.float32, 0, torch.bool)


@pytest.mark.parametrize("kind", ["gradient", "surrogate"])
@pytest.mark.parametrize("order", ["upper_first", "lower_first"])
def test_nothing_is_read_back_by_the_host_and_no_temporary_is_larger_than_the_tokens(kind, order):
    with Operators() as operators:
        curves = contribution_curves(*random_tokens(seed=0), *GRIDS, kind)
        search_bounds(*curves, *GRIDS, 0.4, order, "share")
    waiting = {"item", "_local_scalar_dense", "nonzero", "masked_select", "is_nonzero", "bincount"}
    waiting |= {"equal", "unique"}
    assert not waiting & set(operators.names) and "searchsorted" in operators.names
    assert operators.largest == 500


def test_curves_carry_no_gradient_and_leave_their_inputs_as_they_are():
    tokens = [one.double() if one.is_floating_point() else one for one in random_tokens(seed=0)]
    copies = [tensor.clone() for tensor in tokens]
    tokens[0].requires_grad_()
    positive, negative = contribution_curves(*tokens, LOWS, HIGHS, "surrogate")
    assert not positive.requires_grad and not negative.requires_grad
    assert all(torch.equal(tensor, copy) for tensor, copy in zip(tokens, copies, strict=True))


@pytest.mark.parametrize(("start", "end", "step", "points"), [
    (0.6, 0.9, 0.02, 16), (1.2, 3.0, 0.05, 37), (0.8, 0.95, 0.05, 4), (1.2, 2.0, 0.1, 9), (0.8, 0.8, 0.02, 1),
])  # fmt: skip
def test_the_papers_grids_reach_their_end(start, end, step, points):
    grid = bound_grid(start, end, step)
    assert grid.dtype == torch.float32 and grid.shape == (points,)
    assert (grid[0].item(), grid[-1].item()) == pytest.approx((start, end))
    assert (grid.diff() > 0).all()


def test_a_step_that_does_not_fit_stops_before_the_end():
    assert bound_grid(1.0, 2.0, 0.4).tolist() == pytest.approx([1.0, 1.4, 1.8])
    assert bound_grid(0.0, 0.5, 1.0, torch.float64).tolist() == [0.0]


ONES = torch.ones(4)


@pytest.mark.parametrize(("function", "arguments", "message"), [
    (bound_grid, (0.6, 0.9, 0.0), "step of a bound must be positive, got 0.0"),
    (bound_grid, (0.9, 0.6, 0.1), "got start 0.9 and end 0.6"),
    (bound_grid, (0.6, float("nan"), 0.1), "got start 0.6 and end nan"),
    (contribution_curves, (ONES, ONES, ONES, None, LOWS, HIGHS, "value"), "kind must be one of gradient"),
    (contribution_curves, (ONES, ONES[:3], ONES, None, LOWS, HIGHS), r"advantage .* of ratio, \[4\]"),
    (contribution_curves, (ONES, ONES, ONES, ONES[:1], LOWS, HIGHS), r"weight must .* got \[1\]"),
    (contribution_curves, (ONES, ONES, ONES, None, LOWS[:0], HIGHS), "lows must be an ascending"),
    (contribution_curves, (ONES, ONES, ONES, None, LOWS, HIGHS[0]), "highs must be an ascending"),
    (search_bounds, (HIGHS, LOWS, LOWS, HIGHS, 0.4, "both", "share"), "order must be one of upper_first"),
    (search_bounds, (HIGHS, LOWS, LOWS, HIGHS, 0.4, "upper_first", "sum"), "measure must be one of share"),
    (search_bounds, (LOWS, HIGHS, LOWS, HIGHS, 0.4, "upper_first", "share"), r"highs, \[3\], got \[2\]"),
    (positive_contribution, (ONES, ONES, "mean"), "measure must be one of share, ratio, got 'mean'"),
])  # fmt: skip
def test_arguments_that_cannot_be_are_refused(function, arguments, message):
    with pytest.raises(ValueError, match=message):
        function(*arguments)
