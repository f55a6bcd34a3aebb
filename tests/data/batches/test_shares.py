"""A minibatch split over ranks."""

import torch
from tests.builders import adaptive, gradients, random_policy, stale_batch

from bapo_lightning.data.batches.batch import blank_batch, split_over_ranks
from bapo_lightning.modules.token_tables import token_table
from bapo_lightning.objectives.bounds import contributions


def test_shares_hold_every_sample_once_and_are_balanced():
    batch = stale_batch(random_policy())
    shares = split_over_ranks(batch, 3)
    lengths = [sum(share.context_lengths) + sum(share.response_lengths) for share in shares]
    assert sum(share.num_samples for share in shares) == 24
    assert sum(share.num_tokens for share in shares) == batch.num_tokens
    assert max(lengths) - min(lengths) <= 3
    assert all(share.input_ids.shape == (share.num_samples, max(share.lengths)) for share in shares)
    total = sum(float(share.behaviour_logp.double().sum()) for share in shares)
    assert abs(total - float(batch.behaviour_logp.double().sum())) < 1e-9


def test_more_ranks_than_samples_leave_some_with_none():
    shares = split_over_ranks(stale_batch(random_policy(), num_groups=1, group_size=2), 3)
    assert [share.num_samples for share in shares] == [1, 1, 0]
    assert shares[2].split(100, torch.zeros_like(shares[2].behaviour_logp)) == []


def test_a_blank_batch_adds_nothing_to_curves_and_gradients():
    policy = random_policy()
    rule = adaptive()
    blank = blank_batch(stale_batch(policy))
    (micro_batch,) = blank.split(100, torch.zeros(1, 2))
    table = token_table(policy, micro_batch, 0)
    for curve in contributions(table.detach(), rule.weight, rule.lows, rule.highs, rule.kind):
        assert torch.count_nonzero(curve) == 0
    (-(table.weight * table.ratio * table.advantage).sum()).backward()
    assert torch.count_nonzero(gradients(policy)) == 0 and len(gradients(policy)) > 0
