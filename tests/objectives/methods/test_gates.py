"""Objectives that shape the ratio in place of clipping, by hand: CE-GPPO, SAPO, DCPO, DPPO, prime-rl, MASPO,
DRO and Kimi.
"""

import math

import pytest
import torch
from tests.token_tables import table

from bapo_lightning.algorithms.ce_gppo import ce_gppo
from bapo_lightning.algorithms.dcpo import dcpo_clip
from bapo_lightning.algorithms.dppo import dppo
from bapo_lightning.algorithms.dro import dro
from bapo_lightning.algorithms.maspo import maspo
from bapo_lightning.algorithms.prime_rl import prime_rl
from bapo_lightning.algorithms.sapo import sapo
from bapo_lightning.objectives.clip import clip
from bapo_lightning.objectives.token_table import slopes


def gradients(objective, advantages, ratios, **columns):
    """Gradient of every token in log pi."""
    tokens = table(
        torch.tensor(advantages, dtype=torch.float64), torch.tensor(ratios, dtype=torch.float64), **columns
    )
    return (slopes(objective, tokens) * tokens.ratio).tolist()


def between(probabilities, before):
    """Columns of tokens whose probability went from `before` to `probabilities`."""
    logp, behaviour = (torch.tensor(each, dtype=torch.float64).log() for each in (probabilities, before))
    return {"logp": logp, "behaviour_logp": behaviour, "ratios": [1.0] * len(before)}


def test_ce_gppo_keeps_the_gradient_of_the_bound_where_ppo_has_none():
    advantages, ratios = [1.0, 1.0, -2.0, -2.0, -2.0], [1.1, 2.0, 0.5, 0.9, 20.0]
    bounds = {"low": 0.8, "high": 1.2}
    found = gradients(lambda tokens: ce_gppo(tokens, 0.5, 1.0, 10.0), advantages, ratios, **bounds)
    assert found == pytest.approx([1.1, 1.2, -2 * 0.5 * 0.8, -2 * 0.9, 0.0])
    ppo = gradients(lambda tokens: ce_gppo(tokens, 0.0, 0.0), advantages, ratios, **bounds)
    assert ppo == pytest.approx(gradients(clip, advantages, ratios, **bounds))


def test_ce_gppo_without_bounds_is_finite():
    assert gradients(ce_gppo, [1.0, -1.0], [2.0, 0.5], low=0.0, high=torch.inf) == pytest.approx([2.0, -0.5])


def test_sapo_is_reinforce_at_one_and_fades_on_both_sides():
    found = gradients(sapo, [1.0, -1.0, 1.0, 1.0, 0.0], [1.0, 1.0, 3.0, 1e-3, 2.0])
    gate = 1 / (1 + math.exp(-2))
    assert found[:3] == pytest.approx([1.0, -1.0, 4 * gate * (1 - gate) * 3])
    assert 0 < found[3] < 1e-2 and found[4] == 0


def test_dcpo_gives_unlikely_tokens_wider_bounds():
    # q = 0.8: hi = (1 + sqrt(2)) / 2 = 1.207, lo = (1 + sqrt(0.2)) / 2 = 0.724. q = 0.01: hi = 5, lo = 0.5
    behaviour = torch.tensor([0.8, 0.8, 0.8, 0.8, 0.01, 0.01, 0.01, 0.01]).double().log()
    advantages = [1.0, 1.0, -1.0, -1.0] * 2
    ratios = [1.20, 1.21, 0.73, 0.72, 4.9, 5.1, 0.51, 0.49]
    bounds = {"behaviour_logp": behaviour, "low": 0.84, "high": 1.2}
    assert gradients(dcpo_clip, advantages, ratios, **bounds) == pytest.approx(
        [1.20, 0.0, -0.73, 0.0, 4.9, 0.0, -0.51, 0.0]
    )


def test_dcpo_bounds_of_a_token_of_no_probability_are_finite():
    found = gradients(dcpo_clip, [1.0, -1.0], [9.9, 0.6], behaviour_logp=-1000.0, low=0.84, high=1.2)
    assert found == pytest.approx([9.9, -0.6])


def test_dppo_masks_by_the_change_of_probability():
    moves = between([0.5, 0.5, 0.02, 0.5, 0.3], [0.3, 0.4, 0.001, 0.7, 0.5])
    advantages = [1.0, 1.0, 1.0, -1.0, 1.0]
    # risen by 0.2: masked; by 0.1: kept; twentyfold, but by 0.019 only: kept; fallen by 0.2: masked if A < 0
    assert gradients(dppo, advantages, **moves) == pytest.approx([0.0, 1.25, 20.0, 0.0, 0.6])
    assert gradients(lambda tokens: dppo(tokens, cap=3.0), advantages, **moves)[2] == pytest.approx(3.0)


def test_dppo_by_kl_masks_what_grows_beyond_its_threshold():
    moves = between([0.5, 0.45, 0.3], [0.3, 0.4, 0.5])

    def objective(tokens):
        return dppo(tokens, "kl", 0.05, 0.05)

    # KL of 0.3 from 0.5: 0.3 ln 0.6 + 0.7 ln 1.4 = 0.082
    assert gradients(objective, [1.0, 1.0, 1.0], **moves) == pytest.approx([0.0, 1.125, 0.6])


@pytest.mark.parametrize("divergence", ["tv", "kl"])
def test_dppo_of_certain_tokens_is_finite(divergence):
    tokens = table(torch.tensor([1.0, -1.0]), behaviour_logp=0.0)
    assert slopes(lambda each: dppo(each, divergence), tokens).tolist() == [1.0, -1.0]


def test_prime_rl_masks_and_pulls_every_token_back():
    moves = between([0.6, 0.5], [0.3, 0.4])
    found = gradients(prime_rl, [1.0, 1.0], **moves)
    assert found == pytest.approx([-2e-3 * math.log(2), 1.25 - 2e-3 * math.log(1.25)])


def test_maspo_fades_where_the_token_moves_with_its_advantage():
    behaviour = torch.tensor([1.0, 1.0, 0.001, 1.0]).double().log()
    found = gradients(maspo, [1.0, 1.0, 1.0, -1.0], [2.0, 0.5, 2.0, 0.5], behaviour_logp=behaviour)
    wide = 1.03 * 0.001**-0.3
    expected = [2 * math.exp(-0.5 / 1.03**2), 0.5, 2 * math.exp(-0.5 / wide**2)]
    assert found == pytest.approx([*expected, -0.5 * math.exp(-0.125 * 1.03**2)])


def test_dro_rests_where_the_log_ratio_is_the_advantage_over_beta():
    advantages, ratios = [0.3, -0.1], [math.exp(3), math.exp(-1)]
    assert gradients(lambda tokens: dro(tokens, 0.1), advantages, ratios) == pytest.approx([0, 0], abs=1e-15)
    assert gradients(lambda tokens: dro(tokens, 0.1), advantages, [1.0, 1.0]) == pytest.approx(advantages)


def test_kimi_takes_the_ratio_of_the_response():
    found = gradients(
        lambda tokens: dro(tokens, 0.1, "sequence"),
        [1.0, 1.0, -1.0],
        [math.exp(2), math.exp(3), math.exp(-1)],
        sequence=torch.tensor([0, 0, 1]),
    )
    assert found == pytest.approx([1 - 0.5, 1 - 0.5, -1 + 0.1])
