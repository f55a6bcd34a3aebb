import pytest
import torch
from tests.token_tables import table

from bapo_lightning.algorithms.direct_advantage.objective import direct_advantage
from bapo_lightning.algorithms.direct_advantage.steps import step_advantages
from bapo_lightning.objectives.objective import slopes
from bapo_lightning.objectives.weighting import step_mean, weigh

# Two responses: of two steps, of two tokens and one; and of one step that is one token.
SEQUENCE, STEP = torch.tensor([4, 4, 4, 1]), torch.tensor([0, 0, 1, 0])
ADVANTAGE = torch.tensor([0.5, 0.5, -0.25, 0.0], dtype=torch.float64)
LOG_RATIO = torch.tensor([0.2, -0.1, 0.3, 0.4], dtype=torch.float64)


def tokens(**columns):
    return table(ADVANTAGE, LOG_RATIO.exp(), sequence=SEQUENCE, step=STEP, **columns)


def test_a_step_loses_half_the_square_of_what_its_ratio_lacks_shared_out_over_its_tokens():
    # A / beta - log r: 1 - 0.1, -0.5 - 0.3 and 0 - 0.4
    found = direct_advantage(tokens(), beta=0.5)
    assert found.tolist() == pytest.approx([-0.2025, -0.2025, -0.32, -0.08])


def test_each_token_of_a_step_is_moved_by_what_the_step_lacks():
    made = tokens()
    found = slopes(lambda each: direct_advantage(each, beta=0.5), made) * made.ratio
    assert found.tolist() == pytest.approx([0.9, 0.9, -0.8, -0.4])


def test_far_out_the_pull_is_back_to_the_target():
    far = table([1.0], [1e6], sequence=0, step=0)
    found = slopes(lambda each: direct_advantage(each, beta=0.1), far) * far.ratio
    assert found.item() == pytest.approx(10 - torch.tensor(1e6).log().item(), rel=1e-5)


def test_a_response_of_one_step_is_one():
    made = table(torch.ones(3), torch.tensor([0.1, 0.2, 0.3]).exp(), sequence=0, step=0)
    assert direct_advantage(made, beta=1.0).tolist() == pytest.approx([-0.08 / 3] * 3, rel=1e-5)


def test_a_row_counts_as_often_as_it_stands_for_tokens():
    count = torch.tensor([1.0, 3.0, 1.0, 1.0], dtype=torch.float64)
    found = direct_advantage(tokens(count=count), beta=0.5)  # 1 - (0.2 - 0.3), over 4 tokens
    assert found[:2].tolist() == pytest.approx([-1.21 / 8] * 2)


def test_the_weighting_makes_it_the_mean_over_steps():
    mask = torch.tensor([[1, 1, 1], [1, 0, 0]])
    weights = weigh(step_mean, mask, total=4, num_sequences=2, num_steps=3)
    assert weights.tolist() == [[pytest.approx(1 / 3)] * 3, [pytest.approx(1 / 3), 0.0, 0.0]]
    total = float((direct_advantage(tokens(), beta=0.5) / 3).sum())
    assert total == pytest.approx(-(0.405 + 0.32 + 0.08) / 3)


def test_a_step_is_worth_what_the_value_gains_and_the_last_one_ends_in_the_outcome():
    assert step_advantages([0.5, 0.75, 0.25], 1.0) == [0.25, -0.5, 0.75]
    assert step_advantages([0.5, 0.75, 0.25], 0.0) == [0.25, -0.5, -0.25]
    assert step_advantages([0.25], 1.0) == [0.75]
