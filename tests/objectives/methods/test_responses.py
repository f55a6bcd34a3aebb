"""Objectives of responses and groups by hand: LUSPO, GMPO, GAPO, VESPO, FIPO, REAL."""

from math import exp

import pytest
import torch
from tests.token_tables import table
from tests.zoo import algorithms

from bapo_lightning.algorithms.fipo import fipo
from bapo_lightning.algorithms.gapo import gapo, share_of_others_wrong
from bapo_lightning.algorithms.gmpo import gmpo
from bapo_lightning.algorithms.real import log_class_sum, real
from bapo_lightning.algorithms.vespo import vespo

WIDE = {"low": exp(-0.4), "high": exp(0.4)}
TWO_OF_TWO = torch.tensor([0, 0, 1, 1])


def exact(*values):
    return torch.tensor(values, dtype=torch.float64)


def gradient(objective, made):
    made.logp.requires_grad_()
    (found,) = torch.autograd.grad(objective(made.relative_to(made.proximal_logp)).sum(), made.logp)
    return found.tolist()


def test_luspo_counts_a_response_by_its_length():
    luspo = algorithms.method("luspo")
    mask = torch.tensor([[1, 1, 1], [1, 0, 0]])
    assert luspo.weighting(mask, num_sequences=2).tolist() == [[0.5] * 3, [0.5, 0, 0]]


def test_gmpo_clips_each_token_before_the_mean():
    ratio = exact(0.6, 0.2, -0.6, 0.6).exp()
    made = table(exact(1, 1, -1, -1), ratio, sequence=TWO_OF_TWO, **WIDE)
    expected = [exp(0.3)] * 2 + [-exp(0.1)] * 2  # means of (0.4, 0.2) and of (-0.4, 0.6)
    assert gmpo(made).tolist() == pytest.approx(expected)
    assert gradient(gmpo, made) == pytest.approx([0, exp(0.3), 0, -exp(0.1)])


def test_gmpo_is_the_ratio_where_a_response_is_one_token_and_nothing_where_it_has_no_advantage():
    made = table(exact(2, 0), exact(1.1, 9), **WIDE)
    assert gmpo(made).tolist() == pytest.approx([2.2, 0])


def test_gapo_widens_the_upper_bound_of_groups_with_few_right_answers():
    group = torch.tensor([0, 0, 0, 1, 1, 1, 2, 3])
    advantage = exact(1, -1, -1, 1, 1, -1, 0, 1)
    made = table(advantage, group=group, low=0.8, high=1.4)
    shares = share_of_others_wrong(made)
    assert shares.tolist() == [1, 1, 1, 0.5, 0.5, 0.5, 1, 0]
    moved = table(advantage, 1.35, group=group, low=0.8, high=1.4, statistic=shares)
    found = gapo(moved, level="token").tolist()
    assert found == pytest.approx([1.35, -1.35, -1.35, 1.3, 1.3, -1.35, 0, 1.2])


def test_gapo_counts_responses_and_not_their_tokens():
    made = table(
        exact(1, 1, 1, -1),
        sequence=torch.tensor([0, 0, 0, 1]),
        group=torch.zeros(4, dtype=torch.long),
        low=0.8,
        high=1.4,
    )
    assert share_of_others_wrong(made).tolist() == [1] * 4


def test_vespo_weighs_a_response_by_the_product_of_its_ratios():
    made = table(exact(1, 1, -1, -1), 2**0.5, sequence=TWO_OF_TWO)
    right, wrong = 2**2 * exp(-3), 2**3 * exp(-2)
    assert gradient(vespo, made) == pytest.approx([right, right, -wrong, -wrong])


@pytest.mark.parametrize("step", [20.0, -20.0])
def test_vespo_has_no_gradient_far_out(step):
    made = table(exact(1, 1, -1, -1), exact(*[step] * 4).exp(), sequence=TWO_OF_TWO)
    assert gradient(vespo, made) == pytest.approx([0] * 4, abs=1e-12)


def test_fipo_weighs_a_token_by_what_comes_after_it():
    ratio = exact(0.1, 0.05).exp()
    made = table(exact(1, 1), ratio, sequence=torch.zeros(2, dtype=torch.long), low=0.8, high=1.28)
    first, second = exp(0.1 + 0.5 ** (1 / 32) * 0.05), exp(0.05)
    assert gradient(fipo, made) == pytest.approx([first * exp(0.1), second * exp(0.05)])
    made = table(exact(1, 1), 1 / ratio, sequence=torch.zeros(2, dtype=torch.long), low=0.8, high=1.28)
    assert gradient(fipo, made) == pytest.approx([exp(-0.1), exp(-0.05)]), "never below 1"
    assert gradient(lambda each: fipo(each, least=0.0), made)[0] == pytest.approx(exp(-0.1) / first)


def test_fipo_halves_what_comes_a_half_life_later():
    ratio = torch.ones(33, dtype=torch.float64)
    ratio[-1] = exp(0.1)
    made = table(torch.ones_like(ratio), ratio, sequence=torch.zeros(33, dtype=torch.long), high=1.28)
    assert gradient(fipo, made)[0] == pytest.approx(exp(0.05))


def test_fipo_does_not_strengthen_what_exploded():
    low_high = {"low": 0.8, "high": 1.28}
    assert gradient(fipo, table(exact(-1, -1), exact(3, 5), **low_high)) == pytest.approx([-3 * 1.2, -5])
    made = table(exact(1, 1), exact(1, 11), sequence=torch.zeros(2, dtype=torch.long), **low_high)
    assert gradient(fipo, made) == [1, 0], "the second is clipped, and too far out to count for the first"


def of_groups(log_ratio, advantage):
    """Two groups of three responses; the first has responses of two tokens."""
    return table(
        advantage,
        log_ratio.exp(),
        sequence=torch.tensor([0, 0, 1, 1, 2, 2, 3, 4, 5]),
        group=torch.tensor([0] * 6 + [1] * 3),
    )


def test_real_has_the_gradient_of_the_loss_it_is_named_after():
    log_ratio = exact(0.5, -0.1, 0.3, 0.2, -0.7, 0.1, 2.0, -3.0, 0.4)
    advantage = exact(1, 1, -1, -1, 1, 1, -2, 1, 1)
    made = of_groups(log_ratio, advantage)
    made = made.with_statistic(log_class_sum(made))
    weight = 1 / (6 * exact(2, 2, 2, 2, 2, 2, 1, 1, 1))  # a mean over responses
    found = gradient(lambda each: weight * real(each), made)
    log_ratio.requires_grad_()
    a, b, c = log_ratio[:6].view(3, 2).mean(1) / 0.5
    d, e, f = log_ratio[6:] / 0.5
    losses = (1 + (-a).exp() + (-c).exp()).log() + (1 + b.exp()).log()
    losses += (1 + (-e).exp() + (-f).exp()).log() + (1 + d.exp()).log()
    (expected,) = torch.autograd.grad(-losses / 2, log_ratio)
    assert found == pytest.approx(expected.tolist())


def test_real_leaves_groups_of_one_class_alone():
    made = of_groups(torch.zeros(9, dtype=torch.float64), exact(*[0] * 6, 1, 1, 1))
    made = made.with_statistic(log_class_sum(made))
    assert gradient(real, made) == [0] * 9


def test_real_is_finite_far_out():
    log_ratio = exact(*[-20] * 6, 20, 20, 20)
    made = of_groups(log_ratio, exact(1, 1, -1, -1, 1, 1, -1, 1, -1))
    made = made.with_statistic(log_class_sum(made))
    pulls = gradient(real, made)
    assert pulls[:2] == pytest.approx([3 / 0.5 / 2] * 2), (
        "of 3 responses, the 2 right ones share 1 / temperature"
    )
    assert max(map(abs, pulls)) <= 3 / 0.5
