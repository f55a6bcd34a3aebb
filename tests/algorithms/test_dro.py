import pytest
import torch
from tests.algorithms.by_hand import exact, pulls
from tests.token_tables import table

from bapo_lightning.algorithms.dro import dro


def test_it_rests_where_the_log_ratio_is_the_advantage_over_beta():
    advantages = exact(0.3, -0.1)
    rested = table(advantages, exact(3, -1).exp())
    assert pulls(lambda tokens: dro(tokens, 0.1), rested) == pytest.approx([0, 0], abs=1e-15)
    assert pulls(lambda tokens: dro(tokens, 0.1), table(advantages)) == pytest.approx(advantages.tolist())


def test_kimi_takes_the_ratio_of_the_response():
    made = table(exact(1, 1, -1), exact(2, 3, -1).exp(), sequence=torch.tensor([0, 0, 1]))
    found = pulls(lambda tokens: dro(tokens, 0.1, "sequence"), made)
    assert found == pytest.approx([1 - 0.5, 1 - 0.5, -1 + 0.1])
