from array import array

import pytest
from tests.builders import group, random_policy, rollout, stale_batch

from bapo_lightning.data.batches.batch import collate
from bapo_lightning.objectives.weighting import token_mean
from bapo_lightning.system.errors import StaleDataError
from bapo_lightning.types import FinishReason, Rollout, Segment


def two_samples():
    first = rollout([5, 6], [7, 8, 9], [-0.1, -0.2, -0.3], version=4)
    rollouts = [first, rollout([5], [3], [-0.5], version=6)]
    return collate([group("p", rollouts, [1.0, 0.0], [1.5, -1.5])], {})


def test_collate_puts_prompt_and_response_side_by_side_and_pads_on_the_right():
    batch = two_samples()
    assert batch.input_ids.tolist() == [[5, 6, 7, 8, 9], [5, 3, 0, 0, 0]]
    assert batch.response_mask.int().tolist() == [[0, 0, 1, 1, 1], [0, 1, 0, 0, 0]]
    assert batch.version.tolist() == [[0, 0, 4, 4, 4], [0, 6, 0, 0, 0]]
    assert batch.behaviour_logp[0].tolist() == pytest.approx([0, 0, -0.1, -0.2, -0.3])
    assert (batch.num_tokens, batch.num_samples, batch.version_range()) == (4, 2, (4, 6))
    (micro_batch,) = batch.split(100, token_mean(batch.response_mask, total=4))
    assert (micro_batch.targets.tolist(), micro_batch.index.tolist()) == ([7, 8, 9, 3], [1, 2, 3, 5])
    assert micro_batch.advantage.tolist() == [1.5, 1.5, 1.5, -1.5]
    assert (micro_batch.version.tolist(), micro_batch.weight.tolist()) == ([4, 4, 4, 6], [0.25] * 4)


def test_tokens_of_older_versions_are_context_only():
    begun = Segment(array("i", [7, 8]), array("f", [-0.1, -0.2]), 4)
    segments = begun, Segment(array("i", [9]), array("f", [-0.3]), 6)
    resumed = Rollout(array("i", [5, 6]), segments, FinishReason.STOP)
    assert resumed.versions.tolist() == [4, 4, 6]
    made = group("p", [resumed, rollout([5], [3], [-0.5], version=4)], [1.0, 0.0], [1.5, -1.5])
    batch = collate([made], {}, oldest_trained=5)
    assert batch.input_ids.tolist() == [[5, 6, 7, 8, 9], [5, 3, 0, 0, 0]]
    assert batch.response_mask.int().tolist() == [[0, 0, 0, 0, 1], [0, 0, 0, 0, 0]]
    assert (batch.num_tokens, batch.num_masked_tokens, batch.version_range()) == (1, 3, (6, 6))
    batch.check_ages(version=7, max_age=1)
    (micro_batch,) = batch.split(100, token_mean(batch.response_mask, total=batch.num_tokens))
    assert micro_batch.targets.tolist() == [9] and micro_batch.index.tolist() == [3]
    assert micro_batch.behaviour_logp.tolist() == pytest.approx([-0.3])
    assert micro_batch.weight.tolist() == [1.0]


@pytest.mark.parametrize("budget", [1, 40, 90, 10_000])
def test_a_split_holds_every_token_once_and_is_trimmed_to_its_longest_row(budget):
    batch = stale_batch(random_policy())
    parts = batch.split(budget, batch.response_mask.float())
    assert sum(len(part.targets) for part in parts) == batch.num_tokens
    mask = batch.response_mask
    whole = zip(batch.input_ids[mask].tolist(), batch.behaviour_logp[mask].tolist(), strict=True)
    found = (zip(part.targets.tolist(), part.behaviour_logp.tolist(), strict=True) for part in parts)
    assert sorted(pair for pairs in found for pair in pairs) == sorted(whole)
    for part in parts:
        assert part.input_ids.numel() <= max(budget, part.input_ids.shape[1])


def test_ages_out_of_bounds_are_refused():
    batch = two_samples()
    batch.check_ages(version=6, max_age=2)
    with pytest.raises(StaleDataError, match="of policy version 4 is 3 updates old, 2 are allowed"):
        batch.check_ages(version=7, max_age=2)
    with pytest.raises(StaleDataError, match="claims policy version 6, but the trainer has only reached 5"):
        batch.check_ages(version=5, max_age=2)
