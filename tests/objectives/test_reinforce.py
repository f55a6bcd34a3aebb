"""REINFORCE without a ratio."""

import torch
from tests.token_tables import table

from bapo_lightning.objectives.objective import slopes
from bapo_lightning.objectives.reinforce import reinforce


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
