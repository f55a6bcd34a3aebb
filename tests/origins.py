"""Samples that no policy version sampled at the run's temperature, through a whole update."""

from array import array
from dataclasses import replace

import torch
from tests.builders import budget_for, random_policy, stale_batch, step

from bapo_lightning.data.batches.batch import collate
from bapo_lightning.data.batches.model_input import Layout
from bapo_lightning.modules.bound_rules import FixedBounds
from bapo_lightning.types import NO_VERSION, Origin, Segment

BOUNDS = FixedBounds(0.8, 1.28)


def changed(rollout, origin):
    if origin is not Origin.EXPERT:
        return replace(rollout, origin=origin)
    (segment,) = rollout.segments
    given = Segment(segment.token_ids, array("f", [0.0] * len(segment.token_ids)), NO_VERSION)
    return replace(rollout, segments=(given,), origin=origin)


def groups_of(policy, origins, weight=1.0):
    """Six groups of four, whose samples have these origins in turn; every third group has another weight."""

    def sample(item, index):
        return replace(item, rollout=changed(item.rollout, origins[index % len(origins)]))

    return [
        replace(
            group,
            samples=tuple(sample(item, index) for index, item in enumerate(group.samples)),
            weight=weight if number % 3 == 0 else 1.0,
        )
        for number, group in enumerate(stale_batch(policy).groups)
    ]


def collated(groups):
    return collate(groups, {"rollout/num_samples": 0.0, "rollout/num_tokens": 0.0})


def check_layouts(objective, origins):
    """Checks that an objective's gradient depends on neither split nor layout of samples of these origins."""
    policy = random_policy()
    batch = collated(groups_of(policy, origins, weight=0.3))
    _, whole = step(policy, BOUNDS, batch, objective=objective)
    assert whole.abs().max() > 0
    for parts in (2, 5):
        budget = budget_for(batch, parts)
        _, found = step(policy, BOUNDS, batch, micro_batch_tokens=budget, objective=objective)
        torch.testing.assert_close(found, whole, rtol=1e-4, atol=1e-6)
    micro_batches = batch.split(10_000, batch.response_mask.float(), Layout.PACKED)
    assert sorted(set(micro_batches[0].origin.tolist())) == sorted({int(origin) for origin in origins})
