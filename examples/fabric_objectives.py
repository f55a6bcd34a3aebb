"""Only the pure functions, in a loop of your own with Fabric: `python examples/fabric_objectives.py`.

A table of logits must learn one right action of 64 in each of 32 contexts, from data up to 16 updates old.
"""

import torch
from lightning.fabric import Fabric

from bapo_lightning.objectives.advantages.group import group_advantages
from bapo_lightning.objectives.bounds import bound_grid, contribution_curves, search_bounds
from bapo_lightning.objectives.surrogate import clipped_surrogate, importance_ratio

CONTEXTS, ACTIONS, GROUP, STALENESS, TARGET = 32, 64, 16, 16, 0.5
LOWS, HIGHS = bound_grid(0.6, 0.9, 0.02), bound_grid(1.2, 3.0, 0.05)  # ranges and steps of the search


def main() -> None:
    """Samples from the table, then makes one update on each minibatch."""
    fabric = Fabric(accelerator="cpu", devices=1)
    fabric.seed_everything(0, verbose=False)
    right = torch.randint(ACTIONS, (CONTEXTS, 1))
    table = torch.nn.Embedding(CONTEXTS, ACTIONS)
    torch.nn.init.zeros_(table.weight)
    policy, optimizer = fabric.setup(table, torch.optim.Adam(table.parameters(), lr=0.05))
    for _ in range(24):  # rollout batches
        behaviour = policy.weight.detach().log_softmax(-1)
        actions = torch.multinomial(behaviour.exp(), GROUP, replacement=True)  # [contexts, group]
        rewards = (actions == right).float()
        advantage = group_advantages(rewards)
        for rows in torch.randperm(CONTEXTS).chunk(STALENESS):  # one update on each minibatch
            chosen = actions[rows]
            old = behaviour[rows].gather(1, chosen)
            ratio = importance_ratio(policy(rows).log_softmax(-1).gather(1, chosen), old)
            every = torch.ones_like(ratio, dtype=torch.bool)
            weight = old.exp() / ratio.numel()  # pi_rollout of each token, Eq. 8
            curves = contribution_curves(ratio.detach(), advantage[rows], every, weight, LOWS, HIGHS)
            bounds = search_bounds(*curves, LOWS, HIGHS, TARGET)
            loss = -clipped_surrogate(ratio, advantage[rows], bounds.low, bounds.high).mean()  # Eq. 4
            optimizer.zero_grad()
            fabric.backward(loss)
            optimizer.step()
        print(f"reward {rewards.mean():.3f}  bounds [{float(bounds.low):.2f}, {float(bounds.high):.2f}]")


if __name__ == "__main__":
    main()
