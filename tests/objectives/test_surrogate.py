from dataclasses import replace
from functools import partial

import pytest
import torch
from tests.token_tables import table

from bapo_lightning.objectives.divergence import k3
from bapo_lightning.objectives.objective import clip, slopes
from bapo_lightning.objectives.reinforce import reinforce
from bapo_lightning.objectives.surrogate import clipped_mask, clipped_surrogate, importance_ratio


def test_the_ratio_is_the_quotient_of_probabilities_and_stays_finite():
    ratio = importance_ratio(torch.tensor([0.5, 0.25, 1.0]).log(), torch.tensor([0.25, 0.5, 1.0]).log())
    assert ratio.tolist() == pytest.approx([2.0, 0.5, 1.0])
    extremes = importance_ratio(torch.tensor([0.0, -300.0]), torch.tensor([-300.0, 0.0]))
    assert extremes.tolist() == pytest.approx([4.8516520e8, 2.0611537e-9])


def test_the_objective_of_each_case_is_the_literal_number():
    ratio = torch.tensor([0.5, 0.5, 1.0, 1.0, 2.0, 2.0, 2.0])
    advantage = torch.tensor([1.0, -1.0, 2.0, -2.0, 1.0, -1.0, 0.0])
    objective = clipped_surrogate(ratio, advantage, 0.75, 1.5)
    assert objective.tolist() == [0.5, -0.75, 2.0, -2.0, 1.5, -2.0, 0.0]
    slope = slopes(clip, table(advantage, ratio, low=0.75, high=1.5))
    assert clipped_mask(slope, advantage).tolist() == [False, True, False, False, True, False, False]


@pytest.mark.parametrize("as_tensors", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_fixed_bounds_are_ppo_clip_to_the_bit_with_its_gradients(as_tensors, dtype):
    generator = torch.Generator().manual_seed(0)
    ratio = torch.randn(20, 50, generator=generator, dtype=dtype).mul(0.4).exp()
    # Exactly on the bounds.
    ratio.view(-1)[:4] = torch.tensor([1 - 0.2, 1 + 0.28, 1 - 0.2, 1 + 0.28], dtype=dtype)
    advantage = torch.randn(20, 50, generator=generator, dtype=dtype)
    ours, theirs = ratio.clone().requires_grad_(), ratio.clone().requires_grad_()
    low, high = (torch.tensor(bound, dtype=dtype) if as_tensors else bound for bound in (1 - 0.2, 1 + 0.28))
    objective = clipped_surrogate(ours, advantage, low, high)
    reference = torch.min(theirs * advantage, torch.clamp(theirs, 1 - 0.2, 1 + 0.28) * advantage)
    assert torch.equal(objective, reference)
    objective.sum().backward()
    reference.sum().backward()
    assert torch.equal(ours.grad, theirs.grad)


def test_a_token_has_no_gradient_exactly_where_the_mask_says_so_and_is_alive_on_its_bound():
    ratio = torch.tensor([0.7, 0.75, 0.8, 1.4, 1.5, 1.6] * 2, requires_grad=True)
    advantage = torch.tensor([1.0] * 6 + [-1.0] * 6)
    clipped_surrogate(ratio, advantage, torch.tensor(0.75), 1.5).sum().backward()
    made = replace(table(advantage, low=0.75, high=1.5), ratio=ratio.detach())
    slope = slopes(clip, made)
    mask = clipped_mask(slope, advantage)
    assert mask.tolist() == [False] * 5 + [True] + [True] + [False] * 5
    assert ((ratio.grad == 0) == mask).all()
    assert torch.equal(ratio.grad, advantage.where(~mask, 0.0))


def test_dual_clip_bounds_negative_tokens_only():
    ratio = torch.tensor([10.0, 10.0, 2.0, 0.1], requires_grad=True)
    advantage = torch.tensor([-2.0, 2.0, -2.0, -2.0])
    objective = clipped_surrogate(ratio, advantage, 0.8, 1.25, dual_clip=3.0)
    torch.testing.assert_close(objective, torch.tensor([-6.0, 2.5, -4.0, -1.6]))
    objective.sum().backward()
    assert ratio.grad.tolist() == [0.0, 0.0, -2.0, 0.0]
    slope = slopes(partial(clip, dual_clip=3.0), table(advantage, ratio.detach(), low=0.8, high=1.25))
    assert slope.tolist() == [0.0, 0.0, -2.0, 0.0]
    assert clipped_mask(slope, advantage).tolist() == [True, True, False, True]


@pytest.mark.parametrize("dual_clip", [1.0, 0.0, -3.0])
def test_a_dual_clip_that_would_cut_unchanged_tokens_is_refused(dual_clip):
    with pytest.raises(ValueError, match="dual_clip must be above 1"):
        clipped_surrogate(torch.ones(1), torch.ones(1), 0.8, 1.2, dual_clip)


def test_k3_of_one_token_is_the_literal_number():
    log_ratio = torch.tensor([0.0, 0.6931472, -0.6931472])  # r = 1, 2, 1/2
    assert k3(log_ratio).tolist() == pytest.approx([0.0, 0.3068528, 0.1931472])


def test_the_mean_of_k3_is_the_kl_from_behaviour_to_policy():
    behaviour, policy = torch.tensor([0.5, 0.3, 0.2]), torch.tensor([0.25, 0.25, 0.5])
    log_ratio = (policy / behaviour).log()
    # sum of behaviour * log(behaviour / policy) = 0.2180119
    expected = 0.5 * 0.6931472 + 0.3 * 0.1823216 - 0.2 * 0.9162907
    assert (behaviour * k3(log_ratio)).sum().item() == pytest.approx(expected, rel=1e-6)


def test_k3_keeps_its_digits_close_to_equal_policies():
    assert k3(torch.tensor([1e-3], dtype=torch.float64)).item() == pytest.approx(5.0016670834e-7, rel=1e-9)
    assert (k3(torch.linspace(-3, 3, 101).view(1, 101)) >= 0).all()


def test_the_gradient_is_the_advantage_whatever_the_ratio():
    columns = torch.tensor([[2.0, -1, 0, 0.5], [-1, -3, -0.1, -2], [-1, -0.5, -2, -9]], dtype=torch.float64)
    advantage, logp, behaviour_logp = columns.unbind()
    made = table(advantage, logp=logp.requires_grad_(), behaviour_logp=behaviour_logp)
    reinforce(made).sum().backward()
    assert logp.grad.tolist() == [2, -1, 0, 0.5]
    found = slopes(reinforce, made.detach())
    torch.testing.assert_close(found, made.advantage / made.ratio.detach())
