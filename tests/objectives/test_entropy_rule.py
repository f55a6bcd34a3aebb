import pytest
import torch

from bapo_lightning.objectives.entropy_rule import predicted_entropy_change, quadrant_masses

LOGP = torch.tensor([-0.5, -0.5, -3.5, -3.5])  # mean -2
ADVANTAGE = torch.tensor([1.0, -2.0, 3.0, -4.0])
ALIVE = torch.tensor([True, True, True, True])


def test_the_prediction_is_minus_the_learning_rate_times_the_covariance():
    # mean of (log pi + 2) * A = (1.5 - 3 - 4.5 + 6) / 4 = 0
    assert predicted_entropy_change(LOGP, ADVANTAGE, ALIVE, 0.1).item() == 0
    alive = torch.tensor([True, False, True, True])  # (1.5 - 4.5 + 6) / 4 = 0.75
    assert predicted_entropy_change(LOGP, ADVANTAGE, alive, 0.1).item() == pytest.approx(-0.075)


@pytest.mark.parametrize(("token", "sign"), [(0, -1), (1, 1), (2, 1), (3, -1)])
def test_each_quadrant_moves_entropy_as_table_4_says(token, sign):
    alive = torch.arange(4) == token
    assert predicted_entropy_change(LOGP, ADVANTAGE, alive, 1.0).sign().item() == sign
    masses = [mass.item() for mass in quadrant_masses(LOGP, ADVANTAGE, alive)]
    assert masses == [float(quadrant == {0: 0, 1: 2, 2: 1, 3: 3}[token]) for quadrant in range(4)]


def test_the_masses_are_shares_of_the_absolute_advantage():
    masses = [mass.item() for mass in quadrant_masses(LOGP, ADVANTAGE, ALIVE)]
    assert masses == pytest.approx([0.1, 0.3, 0.2, 0.4])


def test_a_token_at_the_mean_counts_as_high():
    masses = quadrant_masses(torch.full((3, 2), -0.7), torch.ones(3, 2), torch.ones(3, 2, dtype=torch.bool))
    assert masses.positive_high_prob.item() == pytest.approx(1.0)


def test_all_masses_are_zero_when_nothing_is_alive():
    dead = torch.zeros(4, dtype=torch.bool)
    assert [mass.item() for mass in quadrant_masses(LOGP, ADVANTAGE, dead)] == [0.0] * 4
    assert [mass.item() for mass in quadrant_masses(LOGP, torch.zeros(4), ALIVE)] == [0.0] * 4
    assert predicted_entropy_change(LOGP, ADVANTAGE, dead, 1.0).item() == 0
    assert predicted_entropy_change(LOGP, ADVANTAGE, ALIVE, 1.0, torch.zeros(4)).item() == 0
    assert [mass.item() for mass in quadrant_masses(LOGP, ADVANTAGE, ALIVE, torch.zeros(4))] == [0.0] * 4


def test_weights_count_a_token_several_times_and_padding_never():
    logp = torch.tensor([[-0.5, -3.5, float("nan")], [-3.5, -0.5, float("-inf")]])
    advantage = torch.tensor([[1.0, 3.0, float("nan")], [3.0, -2.0, 7.0]])
    weight = torch.tensor([[2.0, 1.0, 0.0], [0.0, 1.0, 0.0]])
    flat = [torch.tensor(values) for values in ([-0.5, -0.5, -3.5, -0.5], [1.0, 1.0, 3.0, -2.0])]
    alive = torch.ones(2, 3, dtype=torch.bool)
    weighted = predicted_entropy_change(logp, advantage, alive, 0.1, weight)
    assert weighted.item() == pytest.approx(predicted_entropy_change(*flat, torch.ones(4), 0.1).item())
    parts = (*flat, torch.ones(4)), (logp, advantage, alive, weight)
    expected, found = ([mass.item() for mass in quadrant_masses(*each)] for each in parts)
    assert found == pytest.approx(expected)


def test_the_prediction_is_first_order_exact_for_a_softmax_policy_under_natural_gradient_ascent():
    logits = torch.tensor([1.0, 0.2, -0.5, -1.3], dtype=torch.float64)
    advantage, learning_rate = torch.tensor([0.7, -0.4, 0.3, -1.1], dtype=torch.float64), 1e-6
    log_probs = logits.log_softmax(0)
    probs = log_probs.exp()
    stepped = (logits + learning_rate * (advantage - (probs * advantage).sum())).log_softmax(0)
    measured = -(stepped.exp() * stepped).sum() + (probs * log_probs).sum()
    predicted = predicted_entropy_change(log_probs, advantage, torch.ones(4), learning_rate, probs)
    assert predicted.item() == pytest.approx(measured.item(), rel=1e-4)
