"""GSPO: the ratio of a whole response, length-normalised (arXiv 2507.18071, Eq. 5-7 and 13)."""

from __future__ import annotations

from torch import Tensor

from bapo_lightning.objectives.sequences import mean_over_sequence
from bapo_lightning.objectives.surrogate import clipped_surrogate
from bapo_lightning.objectives.token_table import TokenTable


def gspo(table: TokenTable) -> Tensor:
    """Returns min(s A, clip(s, low, high) A) per token, [N], where s = exp(mean of log r over the response).

    It is the same for all tokens of a response, so that a mean over its tokens is the objective of the
    response. GSPO-token (Eq. 13), with s sg(.) and a separate ratio for each token, has the same gradient if
    all tokens of a response have the same advantage, as here.
    """
    ratio = mean_over_sequence(table.log_ratio, table).exp()
    return clipped_surrogate(ratio, table.advantage, table.low, table.high)
