"""Makes a step smaller if few responses dominate the update."""

from __future__ import annotations

from torch import Tensor

from bapo_lightning.objectives.sequences import per_sequence, sequence_sum
from bapo_lightning.objectives.token_table import TokenTable, reads
from bapo_lightning.system.values import Share


@reads("logp", "behaviour_logp", "sequence", "count")
def ess_step_scale(table: TokenTable, usual: Share = 1.0) -> Tensor:
    """Returns min(1, sqrt(ESS / (B usual))), 0-dim: VCPO's factor of the learning rate (arXiv 2602.17616).

    ESS = (sum w)^2 / sum w^2 over the B responses of the update, whose weights w are pi / pi_behaviour of the
    whole response, not truncated. The square root suits optimizers like AdamW, whose step does not grow with
    the gradient. The largest weight is divided out, so that nothing overflows.

    Args:
        table: whole update, [N].
        usual: ESS / B of data for which the step stays as it is; in the paper 1 for mathematics, 0.55 for
            several turns.
    """
    log_weight = sequence_sum((table.logp - table.behaviour_logp).double(), table)
    weight = (log_weight - log_weight.max()).exp()
    total, squares, responses = (
        (per_sequence(values, table) * table.count).sum()
        for values in (weight, weight.square(), weight.new_ones(weight.shape))
    )
    return (total.square() / (squares * responses * usual)).clamp_max(1).sqrt()
