import pytest
import torch
from tests.token_tables import table

from bapo_lightning.algorithms.asymre import shifted_mean
from bapo_lightning.objectives.reinforce import reinforce


def test_the_baseline_is_slightly_below_the_mean():
    found = shifted_mean(torch.tensor([[1.0, 0.0, 0.0, 0.0], [1.0, 1.0, 1.0, 0.0], [0.0, 0.0, 0.0, 0.0]]))
    expected = torch.tensor([[0.85, -0.15, -0.15, -0.15], [0.35, 0.35, 0.35, -0.65], [0.1] * 4])
    torch.testing.assert_close(found, expected)


def test_a_group_of_one_is_refused():
    with pytest.raises(ValueError, match=r"a group of 1 .* at least 2 answers per problem"):
        shifted_mean(torch.ones(3, 1))


@pytest.mark.parametrize("shift", [-0.2, -0.5])
def test_below_the_mean_reward_the_limit_of_a_bandit_is_the_paper_s(shift):
    """It is proportional to mu (r - V), where no r is below V; with data of mu it stays there."""
    mu = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
    reward = torch.tensor([0.4, 0.5, 0.6], dtype=torch.float64)
    gain = reward - ((mu * reward).sum() + shift)
    assert (gain > 0).all()
    limit = mu * gain / (mu * gain).sum()

    def gradient(policy):
        logits = policy.log().requires_grad_()
        made = table(gain, logp=logits.log_softmax(0), behaviour_logp=mu.log(), weight=mu)
        return torch.autograd.grad((made.weight * reinforce(made)).sum(), logits)[0]

    torch.testing.assert_close(gradient(limit), torch.zeros(3, dtype=torch.float64))
    assert float(gradient(mu)[2]) > 0 > float(gradient(mu)[0])
    assert float((limit * reward).sum()) > float((mu * reward).sum())
