import pytest
import torch
from tests.algorithms.by_hand import exact, prepared
from tests.token_tables import table

from bapo_lightning.algorithms.top_entropy import TopEntropy, among_highest


@pytest.mark.parametrize(("number", "expected"), [(1, 1), (5, 1), (6, 2), (10, 2), (11, 3), (35, 7)])
def test_a_fifth_of_the_tokens_is_rounded_up(number, expected):
    entropy = torch.rand(number, generator=torch.Generator().manual_seed(0))
    keeps = among_highest(table(torch.ones(number), entropy=entropy))
    assert keeps.sum() == expected
    assert set(entropy[keeps > 0].tolist()) == set(entropy.sort().values[-expected:].tolist())


def test_tokens_as_uncertain_as_the_last_one_belong_to_the_highest():
    assert among_highest(table(torch.ones(5), entropy=exact(1, 2, 0, 2, 1))).tolist() == [0, 1, 0, 1, 0]


def test_a_row_that_stands_for_no_token_does_not_count():
    assert among_highest(table(exact(1, 1), entropy=exact(1, 9), count=exact(1, 0)), 0.5)[0] == 1


def test_the_others_have_no_part_in_the_clipped_surrogate():
    made = table(exact(1, 1, -1, -1), exact(2, 1, 2, 1), high=1.2, entropy=exact(9, 1, 9, 1))
    objective = TopEntropy(share=0.5)
    assert objective(prepared(objective, made)).tolist() == pytest.approx([1.2, 0, -2, 0])
    objective = TopEntropy(share=0.5, dual_clip=1.5)
    assert objective(prepared(objective, made)).tolist() == pytest.approx([1.2, 0, -1.5, 0])
