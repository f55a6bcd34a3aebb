import pytest
import torch
from tests.token_tables import table

from bapo_lightning.algorithms.luffy import luffy
from bapo_lightning.objectives.token_table import slopes
from bapo_lightning.types import Origin

EXPERT = int(Origin.EXPERT)


def test_tokens_of_an_expert_count_p_over_p_plus_gamma_and_others_their_ratio_without_bounds() -> None:
    tokens = table(
        [2.0, 2.0, -1.0, 3.0],
        torch.tensor([0.1, 0.9, 7.0, 0.1]),
        behaviour_logp=torch.tensor([0.0, 0.0, -4.0, -2.0]),
        origin=torch.tensor([EXPERT, EXPERT, 0, 0]),
    )
    # 0.1 / 0.2 = 0.5 and 0.9 / 1.0 = 0.9
    assert luffy(tokens).tolist() == pytest.approx([1.0, 1.8, -7.0, 0.3])


def test_an_experts_token_counts_most_where_the_policy_gives_it_gamma() -> None:
    probabilities = torch.tensor([0.001, 0.05, 0.1, 0.2, 0.99], dtype=torch.float64)
    tokens = table(
        torch.ones(5, dtype=torch.float64), probabilities, behaviour_logp=0.0, origin=torch.tensor(EXPERT)
    )
    by_log_ratio = slopes(luffy, tokens) * probabilities
    assert by_log_ratio.tolist() == pytest.approx(
        [0.1 * p / (p + 0.1) ** 2 for p in probabilities.tolist()], rel=1e-6
    )
    assert by_log_ratio.argmax() == 2


def test_without_an_expert_it_is_the_policy_gradient_with_the_ratio() -> None:
    tokens = table([1.0, -2.0, 0.0], torch.tensor([0.5, 30.0, 2.0]))
    assert slopes(luffy, tokens).tolist() == [1.0, -2.0, 0.0]
