"""Means by bucket, against a loop over the tokens, and over splits of a minibatch."""

import math

import pytest
import torch
from tests.builders import random_policy, stale_batch

from bapo_lightning.modules.token_tables import gather_tables, token_table
from bapo_lightning.objectives import divergence
from bapo_lightning.objectives.token_table import NAMES

ALL = torch.ones(6, dtype=torch.bool)
NOTHING = torch.zeros(0)


def test_a_bucket_ends_before_the_next_and_the_last_has_no_end():
    values, keys = torch.tensor([1.0, 2, 4, 8, 16, 32]), torch.tensor([0, 1, 2, 3, 4, 99])
    found = {
        name: float(mean)
        for name, mean in divergence.means_by_bucket(values, keys, (0, 1, 2, 4), ALL).items()
    }
    assert found == {"0": 1, "1": 2, "2_to_3": 6, "4_up": 24}


def test_what_is_not_counted_has_no_part_even_where_it_is_no_number():
    values, keys = torch.tensor([1.0, math.nan, math.inf, 3, 5, 7]), torch.tensor([0, 0, 0, 0, 2, 2])
    counted = torch.tensor([True, False, False, True, False, False])
    found = divergence.means_by_bucket(values, keys, (0, 2), counted)
    assert float(found["0_to_1"]) == 2 and math.isnan(found["2_up"])


def test_no_tokens_have_no_means():
    for found in (divergence.mismatch_by_age, divergence.mismatch_by_depth):
        assert all(math.isnan(mean) for mean in found(NOTHING, NOTHING, NOTHING, NOTHING == 0).values())
    assert all(math.isnan(each) for each in divergence.ratio_spread(NOTHING, NOTHING, NOTHING == 0).values())


@pytest.mark.parametrize("starts", [divergence.AGES, divergence.DEPTHS])
def test_every_key_is_in_one_bucket_that_its_name_says(starts):
    keys = torch.tensor([0, 1, 3, 4, 7, 15, 16, 63, 255, 4096, 16383, 16384, 10**6])
    for key in keys:
        found = divergence.means_by_bucket(torch.ones(1), key.reshape(1), starts, torch.tensor([True]))
        (name,) = (name for name, mean in found.items() if not math.isnan(mean))
        low = max(start for start in starts if start <= key)
        last = next((start - 1 for start in starts if start > low), None)
        assert name == divergence.bucket_name(low, last)
    assert all(f"{start}" in names for start, names in zip(starts, found, strict=True))


def test_equal_policies_have_equal_ratios_and_a_broken_token_leaves_finite_numbers():
    logp = torch.tensor([-0.5, -1.0, -2.0, -3.0, -4.0, -5.0])
    found = divergence.ratio_spread(logp, logp, ALL)
    assert (float(found["effective_sample_size"]), float(found["chi_square"])) == (1, 0)
    broken = logp.clone()
    broken[0] = -300.0  # the trainer's ratio would be exp(299.5)
    found = divergence.ratio_spread(logp, broken, ALL)
    assert float(found["effective_sample_size"]) == pytest.approx(1 / 6, rel=1e-4)
    assert math.isfinite(found["chi_square"])


def test_chi_square_is_never_negative_and_on_average_that_of_the_distributions():
    torch.manual_seed(0)
    q, p = torch.tensor([0.5, 0.3, 0.2]), torch.tensor([0.4, 0.4, 0.2])
    drawn = torch.multinomial(q, 200_000, replacement=True)
    found = divergence.ratio_spread(p.log()[drawn], q.log()[drawn], torch.ones_like(drawn, dtype=torch.bool))
    exact = float((p**2 / q).sum() - 1)
    assert float(found["chi_square"]) == pytest.approx(exact, rel=0.02)
    assert float(found["effective_sample_size"]) == pytest.approx(1 / (1 + exact), rel=0.02)


def statistics(budget):
    """All of them of one minibatch in micro-batches of so many tokens, and the number of these."""
    policy = random_policy()
    batch = stale_batch(policy)
    micro_batches = batch.split(budget, batch.response_mask / batch.num_tokens, policy.layout)
    with torch.no_grad():
        tables = [token_table(policy, micro_batch, 3) for micro_batch in micro_batches]
    tokens = gather_tables(tables, NAMES)
    scores = tokens.logp, tokens.behaviour_logp
    found = divergence.mismatch_by_age(*scores, tokens.position // 2, tokens.is_sampled)
    found |= divergence.mismatch_by_depth(*scores, tokens.position, tokens.is_sampled)
    found |= divergence.ratio_spread(*scores, tokens.is_sampled)
    return {name: float(value) for name, value in found.items()}, len(micro_batches)


def test_they_do_not_depend_on_the_split_into_micro_batches():
    whole, one = statistics(10**6)
    split, many = statistics(40)
    assert one == 1 and many > 3
    assert sum(not math.isnan(value) for value in whole.values()) >= 8
    assert split == pytest.approx(whole, rel=1e-4, nan_ok=True)
