import pytest
import torch
from tests.algorithms.by_hand import exact, pulls, refusal
from tests.configuration.compositions import found
from tests.token_tables import table

from bapo_lightning.algorithms.dppo import dppo
from bapo_lightning.objectives.objective import slopes


def test_it_masks_by_the_change_of_probability():
    logp, behaviour_logp = exact(0.5, 0.5, 0.02, 0.5, 0.3).log(), exact(0.3, 0.4, 0.001, 0.7, 0.5).log()
    made = table(exact(1, 1, 1, -1, 1), logp=logp, behaviour_logp=behaviour_logp)
    # risen by 0.2: masked; by 0.1: kept; twentyfold, but by 0.019 only: kept; fallen by 0.2: masked if A < 0
    assert pulls(dppo, made) == pytest.approx([0.0, 1.25, 20.0, 0.0, 0.6])
    assert pulls(lambda tokens: dppo(tokens, cap=3.0), made)[2] == pytest.approx(3.0)


def test_by_kl_it_masks_what_grows_beyond_its_threshold():
    made = table(exact(1, 1, 1), logp=exact(0.5, 0.45, 0.3).log(), behaviour_logp=exact(0.3, 0.4, 0.5).log())
    # KL of 0.3 from 0.5: 0.3 ln 0.6 + 0.7 ln 1.4 = 0.082
    assert pulls(lambda tokens: dppo(tokens, "kl", 0.05, 0.05), made) == pytest.approx([0.0, 1.125, 0.6])


@pytest.mark.parametrize("divergence", ["tv", "kl"])
def test_of_certain_tokens_it_is_finite(divergence):
    tokens = table(torch.tensor([1.0, -1.0]), behaviour_logp=0.0)
    assert slopes(lambda each: dppo(each, divergence), tokens).tolist() == [1.0, -1.0]


def test_the_cap_may_be_left_out_and_the_divergence_is_one_of_two():
    assert found("algorithm=dppo", "algorithm.objective.cap=null") == []
    expected = "divergence=js is none of its values; write one of tv, kl"
    assert refusal("dppo", "divergence=js").startswith(expected)
