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


class OperatorNames(TorchDispatchMode):
    """Collects the name of every operator that runs."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


def search(positive, negative, target, order="upper_first", measure="share"):
    curves = (torch.tensor(curve, dtype=torch.float64) for curve in (positive, negative))
    return [value.item() for value in search_bounds(*curves, LOWS, HIGHS, target, order, measure)]


def random_tokens(seed, num_tokens=500):
    generator = torch.Generator().manual_seed(seed)
    ratio = torch.randn(num_tokens, generator=generator).mul(0.5).exp()
    advantage = torch.randn(num_tokens, generator=generator)
    mask = torch.rand(num_tokens, generator=generator) < 0.8
    return ratio, advantage, mask, torch.rand(num_tokens, generator=generator)


def test_the_gradient_curves_leave_clipped_tokens_out_and_keep_those_on_a_bound() -> None:
    positive, negative = contribution_curves(RATIO, ADVANTAGE, ALL, None, LOWS, HIGHS, "gradient")
    assert positive.tolist() == [1.0, 4.0, 4.0]  # 1, then the 1.5 * 2 exactly on its bound, never the 3
    assert negative.tolist() == [2.5, 2.0]  # 0.5 * 1 on its bound and 1 * 2, then only 1 * 2
    assert positive.dtype == negative.dtype == torch.float64


def test_the_surrogate_curves_count_clipped_tokens_with_their_clipped_value() -> None:
    positive, negative = contribution_curves(RATIO, ADVANTAGE, ALL, None, LOWS, HIGHS, "surrogate")
    assert positive.tolist() == [1.0 + 2.5 + 1.25, 1.0 + 3.0 + 1.5, 1.0 + 3.0 + 2.0]
    assert negative.tolist() == [0.5 + 2.0 + 2.0, 0.75 + 3.0 + 2.0]


def test_weights_masks_and_zero_advantages() -> None:
    mask = torch.tensor([True, True, True, False, False, True])
    weight = torch.tensor([0.5, 2.0, 1.0, 1.0, 1.0, 0.25])
    advantage = ADVANTAGE.clone()
    advantage[2] = 0
    positive, negative = contribution_curves(RATIO, advantage, mask, weight, LOWS, HIGHS, "surrogate")
    assert positive.tolist() == [0.5 + 5.0, 0.5 + 6.0, 0.5 + 6.0]
    assert negative.tolist() == [0.5, 0.5]


@pytest.mark.parametrize("kind", ["gradient", "surrogate"])
def test_nothing_under_the_mask_is_used_not_even_nan(kind) -> None:
    ratio, advantage, weight = (
        torch.tensor([value, float("nan"), float("inf")]) for value in (1.0, 1.0, 0.5)
    )
    advantage[1:] = torch.tensor([-1.0, 0.0])
    mask = torch.tensor([True, False, True])
    positive, negative = contribution_curves(ratio, advantage, mask, weight, LOWS, HIGHS, kind)
    assert positive.tolist() == [0.5, 0.5, 0.5]
    assert negative.tolist() == [0.0, 0.0]


@pytest.mark.parametrize(("kind", "expected"), [("gradient", [0.0, 0.0]), ("surrogate", [0.5, 0.75])])
def test_a_ratio_of_zero_stays_on_its_side(kind, expected) -> None:
    zeros, advantage = torch.zeros(2), torch.tensor([5.0, -1.0])
    positive, negative = contribution_curves(zeros, advantage, torch.ones(2), None, LOWS, HIGHS, kind)
    assert positive.tolist() == [0.0, 0.0, 0.0]
    assert negative.tolist() == expected


@pytest.mark.parametrize("kind", ["gradient", "surrogate"])
def test_bounds_of_zero_and_infinity_clip_nothing(kind) -> None:
    lows, highs = torch.tensor([0.0, 0.6]), torch.tensor([1.2, torch.inf])
    positive, negative = contribution_curves(RATIO, ADVANTAGE, ALL, None, lows, highs, kind)
    assert positive[1].item() == 7.0
    assert negative[0].item() == 3.5


@pytest.mark.parametrize("kind", ["gradient", "surrogate"])
def test_curves_of_parts_add_up_and_shape_does_not_matter(kind) -> None:
    lows, highs = bound_grid(0.6, 0.9, 0.02), bound_grid(1.2, 3.0, 0.05)
    tokens = random_tokens(seed=1)
    whole = contribution_curves(*tokens, lows, highs, kind)
    parts = [
        contribution_curves(*part, lows, highs, kind)
        for part in zip(*(t.split(117) for t in tokens), strict=True)
    ]
    for side in range(2):
        torch.testing.assert_close(
            torch.stack([part[side] for part in parts]).sum(0), whole[side], rtol=1e-12, atol=0
        )
    table = contribution_curves(*(tensor.view(20, 25).T for tensor in tokens), lows, highs, kind)
    torch.testing.assert_close(table, whole, rtol=1e-12, atol=0)


def test_raising_either_bound_never_lowers_the_share_of_the_gradient() -> None:
    lows, highs = bound_grid(0.6, 0.9, 0.02), bound_grid(1.2, 3.0, 0.05)
    for seed in range(50):
        positive, negative = contribution_curves(*random_tokens(seed), lows, highs, "gradient")
        share = positive_contribution(positive[:, None], negative[None, :], "share")
        assert (share.diff(dim=0) >= 0).all() and (share.diff(dim=1) >= 0).all()


def test_raising_the_lower_bound_never_raises_the_share_of_the_surrogate() -> None:
    lows, highs = bound_grid(0.6, 0.9, 0.02), bound_grid(1.2, 3.0, 0.05)
    for seed in range(50):
        positive, negative = contribution_curves(*random_tokens(seed), lows, highs, "surrogate")
        share = positive_contribution(positive[:, None], negative[None, :], "share")
        assert (share.diff(dim=0) >= 0).all() and (share.diff(dim=1) <= 0).all()


def test_the_curves_are_the_sums_of_the_losses_own_terms() -> None:
    ratio, advantage, mask, weight = random_tokens(seed=3)
    low, high = torch.tensor([0.8]), torch.tensor([1.25])
    leaf = ratio.clone().requires_grad_()
    objective = weight * mask * clipped_surrogate(leaf, advantage, 0.8, 1.25)
    objective.sum().backward()
    # r d/dr = d/d(log pi)
    for kind, terms in (("surrogate", objective.detach()), ("gradient", leaf.grad * ratio)):
        curves = contribution_curves(ratio, advantage, mask, weight, low, high, kind)
        expected = terms[advantage > 0].double().sum(), terms[advantage < 0].double().sum().neg()
        assert [curve.item() for curve in curves] == pytest.approx(
            [value.item() for value in expected], rel=1e-5
        )


def test_the_search_takes_the_upper_bound_first() -> None:
    assert search([1.0, 2.0, 3.0], [3.0, 1.0], target=0.25) == [0.5, 1.25, 0.25, True]
    assert search([1.0, 2.0, 3.0], [3.0, 1.0], target=0.3) == [0.5, 1.5, 0.4, True]
    assert search([1.0, 2.0, 3.0], [3.0, 1.0], target=0.5) == [0.5, 2.0, 0.5, True]
    assert search([1.0, 2.0, 3.0], [3.0, 1.0], target=0.6) == [0.75, 2.0, 0.75, True]
    assert search([1.0, 2.0, 3.0], [3.0, 1.0], target=0.8) == [0.75, 2.0, 0.75, False]


def test_the_search_takes_the_lower_bound_first_on_request() -> None:
    assert search([1.0, 2.0, 3.0], [3.0, 1.0], target=0.3, order="lower_first") == [0.75, 1.25, 0.5, True]
    assert search([1.0, 2.0, 3.0], [3.0, 1.0], target=0.7, order="lower_first") == [0.75, 2.0, 0.75, True]


def test_the_ratio_measure_is_positives_over_negatives() -> None:
    assert search([1.0, 2.0, 3.0], [4.0, 1.0], target=0.5, measure="ratio") == [0.5, 1.5, 0.5, True]
    assert search([1.0, 2.0, 3.0], [0.0, 0.0], target=9.0, measure="ratio") == [0.5, 1.25, float("inf"), True]


def test_with_nothing_to_balance_the_bounds_stay_at_their_start() -> None:
    for measure in ("share", "ratio"):
        low, high, value, met = search([0.0, 2.0, 3.0], [0.0, 0.0], target=0.5, measure=measure)
        assert (low, high, met) == (0.5, 1.25, True)
        assert value != value


def test_only_negative_tokens_run_to_the_end_of_the_path() -> None:
    assert search([0.0, 0.0, 0.0], [2.0, 1.0], target=0.4) == [0.75, 2.0, 0.0, False]
    low, high, value, met = search([0.0, 0.0, 0.0], [2.0, 0.0], target=0.4)  # 0/0 on the way is not a success
    assert (low, high, met) == (0.75, 2.0, False)
    assert value != value


def test_at_a_ratio_of_one_the_curves_are_flat_and_the_target_may_be_a_tensor() -> None:
    advantage = torch.tensor([1.0, -1.0])
    curves = contribution_curves(torch.ones(2), advantage, torch.ones(2), None, LOWS, HIGHS)
    assert [curve.tolist() for curve in curves] == [[1.0, 1.0, 1.0], [1.0, 1.0]]
    found = search_bounds(*curves, LOWS, HIGHS, torch.tensor(0.5), "upper_first", "share")
    assert [value.item() for value in found] == [0.5, 1.25, 0.5, True]
    assert (found.low.dtype, found.low.dim(), found.met.dtype) == (torch.float32, 0, torch.bool)


def test_a_single_lower_bound_leaves_the_upper_one_free() -> None:
    positive, negative = torch.tensor([1.0, 2.0, 3.0]), torch.tensor([3.0])
    found = search_bounds(positive, negative, LOWS[:1], HIGHS, 0.5, "upper_first", "share")
    assert [value.item() for value in found] == [0.5, 2.0, 0.5, True]


@pytest.mark.parametrize("kind", ["gradient", "surrogate"])
@pytest.mark.parametrize("order", ["upper_first", "lower_first"])
def test_nothing_is_read_back_by_the_host(kind, order) -> None:
    tokens = random_tokens(seed=0)
    lows, highs = bound_grid(0.6, 0.9, 0.02), bound_grid(1.2, 3.0, 0.05)
    with OperatorNames() as operators:
        curves = contribution_curves(*tokens, lows, highs, kind)
        search_bounds(*curves, lows, highs, 0.4, order, "share")
    waiting = {
        "item",
        "_local_scalar_dense",
        "nonzero",
        "masked_select",
        "is_nonzero",
        "bincount",
        "equal",
        "unique",
    }
    assert not waiting & set(operators.names)
    assert "searchsorted" in operators.names


def test_no_temporary_of_tokens_times_bounds_is_made() -> None:
    class LargestTensor(OperatorNames):
        numel = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            result = super().__torch_dispatch__(func, types, args, kwargs)
            self.numel = max([self.numel] + [t.numel() for t in (result,) if isinstance(t, torch.Tensor)])
            return result

    with LargestTensor() as largest:
        contribution_curves(*random_tokens(seed=0), LOWS, HIGHS, "surrogate")
    assert largest.numel == 500


def test_curves_carry_no_gradient_and_leave_their_inputs_as_they_are() -> None:
    tokens = tuple(
        tensor.double() if tensor.is_floating_point() else tensor for tensor in random_tokens(seed=0)
    )
    copies = tuple(tensor.clone() for tensor in tokens)
    positive, negative = contribution_curves(
        tokens[0].requires_grad_(), *tokens[1:], LOWS, HIGHS, "surrogate"
    )
    assert not positive.requires_grad and not negative.requires_grad
    assert all(torch.equal(tensor, copy) for tensor, copy in zip(tokens, copies, strict=True))
