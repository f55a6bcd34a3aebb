"""References of algorithms whose advantages are their own; their objectives are PPO's and REINFORCE's.

The advantages themselves are in `tests.zoo.rewards`.
"""

from __future__ import annotations

from tests.zoo.reference import Reference, reinforce
from tests.zoo.references_tokens import CLIP

CLIPPED = (
    "dr_grpo", "rloo", "reinforce_pp", "reinforce_pp_baseline", "opo", "bnpo", "dcpo_sas", "psr", "nsr",
    "w_reinforce", "maxrl", "spo", "pass_at_k",
)  # fmt: skip
# AsymRE (arXiv 2506.20520): the gradient of w A log pi, whatever the ratios.
REFERENCES = {"asymre": Reference(reinforce), **dict.fromkeys(CLIPPED, CLIP)}
