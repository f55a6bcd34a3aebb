import math
from functools import partial

import pytest
import torch
from tests.token_tables import table

from bapo_lightning.objectives.corrections import responses, tokens
from bapo_lightning.objectives.corrections.tokens import kpop, masked_is, truncated_is
from bapo_lightning.objectives.divergence import mismatch

WEIGHTS = [0.1, 0.5, 1.0, 1.9, 2.5, 7.0]
LOG_WEIGHTS = torch.tensor([math.log(weight) for weight in WEIGHTS], dtype=torch.float64)


def gaps(log_weights):
    """Tokens on which engine and trainer differ by so many nats."""
    return table(torch.ones_like(log_weights), behaviour_logp=-1.0, proximal_logp=log_weights - 1)


GAPS = gaps(LOG_WEIGHTS)


def test_truncation_caps_the_weight_and_keeps_what_is_below():
    assert truncated_is(GAPS).tolist() == pytest.approx([0.1, 0.5, 1.0, 1.9, 2.0, 2.0])
    assert truncated_is(GAPS, cap=5).tolist() == pytest.approx([0.1, 0.5, 1.0, 1.9, 2.5, 5.0])


def test_masking_drops_what_leaves_the_interval_and_keeps_the_rest_as_it_is():
    inside = LOG_WEIGHTS.clone()
    inside[1] += 1e-12  # log and exp may round across a bound
    assert masked_is(gaps(inside)).tolist() == pytest.approx([0, 0.5, 1.0, 1.9, 2.5, 0])
    assert masked_is(GAPS, low=0, high=2).tolist() == pytest.approx([0.1, 0.5, 1.0, 1.9, 0, 0])


@pytest.mark.parametrize("correction", [
    truncated_is, masked_is, kpop, tokens.unweighted, responses.sequence_truncated_is, responses.outlier_mask,
    partial(responses.sequence_masked, weigh=True), partial(responses.sequence_masked, level="geometric"),
    partial(responses.sequence_truncated_is, level="prefix"), responses.carm,
])  # fmt: skip
def test_a_correction_keeps_shape_weighs_agreement_exactly_1_and_passes_no_gradient(correction):
    log_weight = torch.zeros(6, requires_grad=True)
    weight = correction(gaps(log_weight))
    assert torch.equal(weight, torch.ones(6)) and not weight.requires_grad


def test_kpop_drops_a_token_that_one_of_both_hardly_expects():
    behaviour = torch.tensor([0.5, 0.5, 0.99, 0.01, 1e-12, 1.0], dtype=torch.float64).log()
    proximal = torch.tensor([0.5, 0.6, 0.01, 0.99, 1e-9, 1.0], dtype=torch.float64).log()
    made = table(torch.ones(6, dtype=torch.float64), behaviour_logp=behaviour, proximal_logp=proximal)
    # KL(0.99 || 0.01) = 0.98 log 99 = 4.5 nats, the same both ways; far below 1e-8 nothing differs.
    assert kpop(made).tolist() == pytest.approx([1, 1.2, 0, 0, 1000, 1])
    assert kpop(made, 4.6).tolist() == pytest.approx([1, 1.2, 0.01 / 0.99, 99, 1000, 1])


def test_the_difference_is_limited_to_20_nats():
    broken = gaps(torch.tensor([500.0, -500.0]))
    assert truncated_is(broken, cap=1e12).tolist() == pytest.approx([math.exp(20), math.exp(-20)])
    assert masked_is(broken).tolist() == [0, 0]


@pytest.mark.parametrize(("call", "message"), [
    (lambda: truncated_is(GAPS, cap=0), "cap must be positive .* got 0"),
    (lambda: truncated_is(GAPS, cap=float("nan")), "cap must be positive"),
    (lambda: masked_is(GAPS, low=1.0), "got low 1.0 and high 5.0"),
    (lambda: masked_is(GAPS, low=-0.1), "0 <= low < 1 < high"),
    (lambda: masked_is(GAPS, high=1), "got low 0.5 and high 1"),
])  # fmt: skip
def test_arguments_that_make_no_sense_are_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_effective_sample_size_is_a_share_of_the_tokens():
    assert float(tokens.effective_sample_size(torch.full((5,), 0.3).double())) == pytest.approx(1)
    assert float(tokens.effective_sample_size(torch.tensor([1.0, 1.0, 0.0, 0.0]))) == 0.5
    assert float(tokens.effective_sample_size(torch.tensor([1.0, 3.0]))) == pytest.approx(16 / 20)


def test_mismatch_statistics_of_three_tokens():
    found = mismatch(torch.tensor([-1.0, -2.0, -0.5]), torch.tensor([-1.3, -1.8, -0.5]))
    expected = {"abs_logp_diff_mean": 0.5 / 3, "abs_logp_diff_max": 0.3, "logp_diff_mean": 0.1 / 3}
    expected |= {"ratio_max": math.exp(0.3), "kl": (math.exp(0.3) - 1.3 + math.exp(-0.2) - 0.8) / 3}
    assert {name: float(value) for name, value in found.items()} == pytest.approx(expected, rel=1e-5)
