import pytest
import torch

from bapo_lightning.algorithms.w_reinforce import psr_nsr

ROWS = torch.tensor([[1.0, 0.0, 0.0, 0.0], [1.0, 1.0, 1.0, 0.0], [0.0, 0.0, 0.0, 0.0]])


@pytest.mark.parametrize(("options", "expected"), [
    ((1, 0), [[1, 0, 0, 0], [1, 1, 1, 0], [0] * 4]),  # PSR
    ((0, 1), [[0, -1, -1, -1], [0, 0, 0, -1], [-1] * 4]),  # NSR
    ((), [[0.1, -1, -1, -1], [0.1, 0.1, 0.1, -1], [-1] * 4]),  # W-REINFORCE
])  # fmt: skip
def test_right_and_wrong_answers_weigh_what_the_method_says(options, expected):
    torch.testing.assert_close(psr_nsr(ROWS, *options), torch.tensor(expected, dtype=torch.float32))


def test_they_need_no_group():
    assert psr_nsr(torch.tensor([[1.0], [0.0]])).tolist() == [[pytest.approx(0.1)], [-1]]
