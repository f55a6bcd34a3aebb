import pytest
import torch
from tests.token_tables import table

from bapo_lightning.algorithms.aepo import aepo
from bapo_lightning.objectives.token_table import slopes
from bapo_lightning.types import Origin


def test_tokens_of_another_temperature_have_no_ratio_and_all_others_are_ppos() -> None:
    tokens = table(
        [1.0, 1.0, 1.0, -2.0], torch.tensor([3.0, 3.0, 1.1, 0.7]), low=0.8, high=1.2,
        origin=torch.tensor([int(Origin.TEMPERED), 0, 0, 0]),
    )  # fmt: skip
    assert aepo(tokens).tolist() == pytest.approx([torch.tensor(3.0).log().item(), 1.2, 1.1, -1.6])
    by_log_ratio = slopes(aepo, tokens) * tokens.ratio
    assert by_log_ratio.tolist() == pytest.approx([1.0, 0.0, 1.1, 0.0])
