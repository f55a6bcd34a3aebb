import pytest
import torch

from bapo_lightning.algorithms.maxrl import maxrl


def test_gains_are_divided_by_the_mean():
    found = maxrl(torch.tensor([[1.0, 0.0, 0.0, 0.0], [1.0, 0.5, 0.5, 0.0], [0.5] * 4, [0.0] * 4]))
    expected = torch.tensor([[3.0, -1, -1, -1], [1, 0, 0, -1], [0] * 4, [0] * 4])
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-4)


def test_a_group_of_one_is_refused():
    with pytest.raises(ValueError, match=r"a group of 1 .* at least 2 answers per problem"):
        maxrl(torch.ones(3, 1))
