"""SPO, single stream: estimates an answer's baseline from earlier answers (arXiv 2509.13232).

It is not the SPO of ASymPO (arXiv 2606.03070).
"""

from __future__ import annotations

from typing import Annotated, Any

import torch
from annotated_types import Ge, Lt
from torch import Tensor

from bapo_lightning.objectives.advantages.reward_batch import RewardBatch
from bapo_lightning.system.values import Advice, Positive

Forgetting = Annotated[
    float, Ge(0), Lt(1), Advice("must be in [0, 1): the share of the past that is kept with each answer")
]


class SingleStream:
    """Beta tracker of each problem's share of right answers, v = a / (a + b); both begin at `prior`.

    A = (X - mean X) / (std X + eps) over the responses of the batch, where X = R - v with v before the batch;
    std is unbiased. Then a <- keep a + R and b <- keep b + 1 - R for each answer of a new group.

    This is the authors' code with its constant `rho`. Its other choice, the paper's, forgets faster the
    further the policy has moved since the problem's last answer, 2^(-D / 0.06) within [0.875, 0.96], which
    takes two more passes; 0.875 is also its constant. The authors begin with 8 offline answers to each
    problem, and draw uncertain problems more often; here trackers begin empty, and problems come in the order
    of the run. Groups may be larger than 1.
    """

    def __init__(self, keep: Forgetting = 0.875, prior: Positive = 0.5, eps: Positive = 1e-8) -> None:
        """`keep` is rho; a `prior` of 0.5 is Jeffreys', and the authors' if they have no offline answers."""
        self._keep, self._prior, self._eps = keep, prior, eps
        self._tracked: dict[str, tuple[float, float]] = {}

    def __call__(self, batch: RewardBatch) -> Tensor:
        """Returns advantages of P groups, [P, G], zero if all X are equal, and learns from the new groups."""
        before = [self._tracked.get(problem, (self._prior, self._prior)) for problem in batch.problems]
        values = torch.tensor([[right / (right + wrong)] for right, wrong in before], dtype=torch.float64)
        gains = batch.rewards.double() - values
        for problem, rewards, is_new in zip(
            batch.problems, batch.rewards.tolist(), batch.is_new, strict=True
        ):
            for reward in rewards if is_new else ():
                right, wrong = self._tracked.get(problem, (self._prior, self._prior))
                self._tracked[problem] = self._keep * right + reward, self._keep * wrong + 1 - reward
        if bool((gains == gains[0, 0]).all()):
            return torch.zeros_like(batch.rewards)
        return ((gains - gains.mean()) / (gains.std() + self._eps)).to(batch.rewards.dtype)

    def state_dict(self) -> dict[str, Any]:
        """Returns the trackers."""
        return {problem: list(counts) for problem, counts in self._tracked.items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores them."""
        self._tracked = {problem: (right, wrong) for problem, (right, wrong) in state.items()}
