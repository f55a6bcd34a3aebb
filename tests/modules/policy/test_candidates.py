"""Tokens that could have been sampled, from rollouts to the policy's log-probs and an update's gradient."""

from array import array
from dataclasses import replace

import pytest
import torch
from tests.builders import VOCAB_SIZE, budget_for, random_model, rollout, stale_batch, step

from bapo_lightning.data.batches.batch import blank_batch, collate, split_over_ranks
from bapo_lightning.data.batches.model_input import model_input
from bapo_lightning.data.rollouts.group_state import ArrayStore, pack_group, unpack_group
from bapo_lightning.modules.bound_rules import FixedBounds
from bapo_lightning.modules.policy.packing import PACKED_SDPA
from bapo_lightning.modules.policy.policy import Policy
from bapo_lightning.types import Candidates, Segment

CPU = torch.device("cpu")
METRICS = {"rollout/num_samples": 0.0, "rollout/num_tokens": 0.0}


def exact_policy(is_cut=True, packed=False):
    model = random_model().double()
    if packed:
        model.set_attn_implementation(PACKED_SDPA)
    return Policy(model, 0.7, packed, is_cut=is_cut)


def supports(item, seed):
    """Between one and five tokens at each place, the sampled one among them."""
    generator = torch.Generator().manual_seed(seed)
    places = []
    for token in item.response_ids:
        size = int(torch.randint(1, 6, (), generator=generator))
        others = torch.randperm(VOCAB_SIZE, generator=generator)[:size].tolist()
        places.append([(each, -1.5) for each in dict.fromkeys([token, *others])])
    return Candidates.of_places(places)


def with_supports(groups):
    """The groups, with supports of all responses but each group's first one, as an expert's has none."""
    made = []
    for number, group in enumerate(groups):
        samples = [group.samples[0]]
        for place, sample in enumerate(group.samples[1:]):
            (segment,) = sample.rollout.segments
            own = replace(segment, candidates=supports(sample.rollout, 10 * number + place))
            samples.append(replace(sample, rollout=replace(sample.rollout, segments=(own,))))
        made.append(replace(group, samples=tuple(samples)))
    return made


@pytest.fixture(scope="module")
def groups():
    return with_supports(stale_batch(exact_policy(is_cut=False)).groups)


def by_hand(policy, item):
    """Log-probs of a response among the tokens at each of its places, from all logits."""
    tokens = torch.tensor([[*item.prompt_ids, *item.response_ids]])
    logits = policy.model(tokens).logits[0, -item.length - 1 : -1].double() / policy.temperature
    found, noted, end = [], item.candidates, 0
    for place, token in enumerate(item.response_ids):
        support = range(VOCAB_SIZE)
        if noted is not None:
            support = noted.token_ids[end : end + noted.counts[place]]
            end += noted.counts[place]
        own = logits[place, list(support)]
        found.append(logits[place, token] - own.logsumexp(0))
    return torch.stack(found)


@pytest.mark.parametrize("packed", [False, True], ids=["padded", "packed"])
def test_log_probs_are_of_the_distribution_among_the_candidates(groups, packed):
    policy = exact_policy(packed=packed)
    rollouts = [sample.rollout for group in groups[:2] for sample in group.samples]
    found = policy(model_input(rollouts, CPU, policy.layout))[0]
    expected = torch.cat([by_hand(exact_policy(), item) for item in rollouts])
    torch.testing.assert_close(found, expected)
    by_response = by_hand(exact_policy(), rollouts[5]).tolist()
    assert policy.response_logprobs(rollouts, 300)[5] == pytest.approx(by_response, abs=1e-6)
    whole = exact_policy(is_cut=False)
    expected = torch.cat([by_hand(whole, replace_candidates(item)) for item in rollouts])
    torch.testing.assert_close(whole(model_input(rollouts, CPU))[0], expected)


def replace_candidates(item):
    return replace(item, segments=tuple(replace(each, candidates=None) for each in item.segments))


@pytest.mark.parametrize("parts", [1, 3])
@pytest.mark.parametrize("packed", [False, True], ids=["padded", "packed"])
def test_the_gradient_is_that_of_a_computation_by_hand(groups, parts, packed):
    """PPO-clip with bounds 0.8 and 1.28 over the mean of all tokens, from the ratios of `by_hand`."""
    batch = collate(groups, METRICS)
    policy = exact_policy(packed=packed)
    budget = 100_000 if parts == 1 else budget_for(batch, parts)
    _, found = step(policy, FixedBounds(0.8, 1.28), batch, micro_batch_tokens=budget)
    policy = exact_policy()
    loss, count = 0.0, 0
    for group in groups:
        for sample, advantage in zip(group.samples, group.advantages, strict=True):
            behaviour = torch.tensor(sample.rollout.logprobs, dtype=torch.float64)
            ratio = (by_hand(policy, sample.rollout) - behaviour).exp()
            advantage = torch.tensor(advantage, dtype=torch.float32).double()
            loss = loss - torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.28) * advantage).sum()
            count += len(ratio)
    parameters = policy.trained_parameters()
    expected = torch.autograd.grad(loss * float(torch.tensor(1 / count)), parameters)
    assert len(found) == sum(each.numel() for each in parameters)
    torch.testing.assert_close(found, torch.cat([each.flatten() for each in expected]), atol=1e-9, rtol=1e-6)


def test_shares_of_ranks_and_blanks_keep_candidates(groups):
    batch = collate(groups, METRICS)
    assert batch.candidates.shape == batch.scores["candidate_behaviour_logp"].shape
    for share in split_over_ranks(batch, 2):
        assert share.candidates.shape == (share.num_samples, share.input_ids.shape[1], 6)
    (micro_batch,) = blank_batch(batch).split(100, torch.zeros(1, 2))
    assert micro_batch.candidates.tolist() == [[-1] * 6]
    assert exact_policy()(micro_batch)[0].isfinite().all()


def test_a_checkpoint_keeps_candidates(groups):
    store = ArrayStore()
    packed = [pack_group(store, group) for group in groups]
    store = ArrayStore.from_state_dict(store.state_dict())
    for group, own in zip(groups, packed, strict=True):
        kept = unpack_group(store, own, lambda _, group=group: group.problem)
        found, expected = ([each.rollout.segments for each in one.samples] for one in (kept, group))
        assert found == expected


def test_segments_of_one_version_are_joined_with_their_candidates():
    noted = Candidates.of_places([[(3, -0.5), (4, -1.0)]])
    first = Segment(array("i", [3]), array("f", [-0.5]), 2, candidates=noted)
    later = Segment(array("i", [5, 6]), array("f", [-1.0, -2.0]), 2)
    joined = first.joined(later).candidates
    assert joined == Candidates(array("i", [3, 4]), array("f", [-0.5, -1.0]), array("i", [2, 0, 0]))
    assert joined.cut(1) == noted
    assert rollout([1], [2], [-1.0]).candidates is None
