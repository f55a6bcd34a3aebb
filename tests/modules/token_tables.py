"""Token tables of an update whose policy is the behaviour policy."""

import torch

from bapo_lightning.modules.token_table import TokenTable


def table(advantages):
    advantage = torch.tensor(advantages)
    ones = torch.ones_like(advantage)
    logp = torch.full_like(advantage, -1.0)
    return TokenTable(
        logp=logp,
        entropy=ones,
        ratio=ones,
        behaviour_logp=logp,
        proximal_logp=logp,
        version=torch.zeros_like(advantage, dtype=torch.long),
        advantage=advantage,
        weight=ones,
        slope=advantage,
    )
