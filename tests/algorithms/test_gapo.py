import pytest
import torch
from tests.algorithms.by_hand import exact, prepared
from tests.token_tables import table

from bapo_lightning.algorithms.gapo import GAPO, share_of_others_wrong

BOUNDS = {"low": 0.8, "high": 1.4}


def test_the_upper_bound_is_wider_in_groups_with_few_right_answers():
    group = torch.tensor([0, 0, 0, 1, 1, 1, 2, 3])
    made = table(exact(1, -1, -1, 1, 1, -1, 0, 1), 1.35, group=group, **BOUNDS)
    assert share_of_others_wrong(made).tolist() == [1, 1, 1, 0.5, 0.5, 0.5, 1, 0]
    made = prepared(GAPO(), made)
    of_tokens, of_responses = (GAPO(level)(made).tolist() for level in ("token", "sequence"))
    expected = [1.35, -1.35, -1.35, 1.3, 1.3, -1.35, 0, 1.2]
    assert of_tokens == of_responses == pytest.approx(expected), "each response is a token"


def test_responses_are_counted_and_not_their_tokens():
    sequence = torch.tensor([0, 0, 0, 1])
    made = table(exact(1, 1, 1, -1), sequence=sequence, group=torch.zeros(4, dtype=torch.long), **BOUNDS)
    assert share_of_others_wrong(made).tolist() == [1] * 4


def test_the_ratio_is_that_of_the_response_or_of_each_token():
    made = prepared(GAPO(), table(exact(1, 1), exact(0.4, -0.2).exp(), sequence=0, group=0, **BOUNDS))
    assert GAPO()(made).tolist() == pytest.approx(exact(0.1, 0.1).exp().tolist())
    assert GAPO("token")(made).tolist() == pytest.approx([1.2, exact(-0.2).exp().item()])
