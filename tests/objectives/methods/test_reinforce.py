"""REINFORCE without a ratio, and AsymRE's limit in a bandit."""

import pytest
import torch
from tests.token_tables import table

from bapo_lightning.objectives.reinforce import reinforce
from bapo_lightning.objectives.token_table import slopes


def test_the_gradient_is_the_advantage_whatever_the_ratio():
    logp = torch.tensor([-1.0, -3.0, -0.1, -2.0], dtype=torch.float64, requires_grad=True)
    made = table(
        torch.tensor([2.0, -1.0, 0.0, 0.5], dtype=torch.float64),
        logp=logp,
        behaviour_logp=torch.tensor([-1.0, -0.5, -2.0, -9.0], dtype=torch.float64),
    )
    reinforce(made).sum().backward()
    assert logp.grad.tolist() == [2, -1, 0, 0.5]
    found = slopes(reinforce, made.detach())
    torch.testing.assert_close(found, made.advantage / made.ratio.detach())


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
