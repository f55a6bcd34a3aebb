"""Updates on conversations: gradients against a masked computation by hand, padded and in one row; what an
environment wrote is context and nothing else.
"""

import random
from array import array
from dataclasses import replace

import pytest
import torch
from tests import builders

from bapo_lightning.data.batches.batch import collate, split_over_ranks
from bapo_lightning.data.batches.model_input import Layout
from bapo_lightning.modules.bound_rules import FixedBounds
from bapo_lightning.modules.policy.factory import build_policy
from bapo_lightning.modules.policy.options import ModelOptions
from bapo_lightning.modules.policy.policy import Policy
from bapo_lightning.types import FinishReason, Reply, Rollout, Segment

METRICS = {"rollout/num_samples": 0.0, "rollout/num_tokens": 0.0}


def conversation(generator, turns, versions=(0,)):
    """Turns of one to four tokens with feedback of one to five between them."""

    def ids(most):
        return array(
            "i", [generator.randrange(builders.VOCAB_SIZE) for _ in range(generator.randint(1, most))]
        )

    segments = []
    for number in range(turns):
        own = ids(4)
        logprobs = array("f", [-3 + generator.random() for _ in own])
        segments.append(Segment(own, logprobs, versions[min(number, len(versions) - 1)]))
        segments.append(Segment.of_feedback(ids(5)))
    replies = tuple(Reply("", number + 1 == turns) for number in range(turns))
    return Rollout(ids(6), tuple(segments[:-1]), FinishReason.STOP, replies=replies)


def conversations(seed=0, versions=(0,), turns=(2, 1, 3, 2)):
    generator = random.Random(seed)
    groups = []
    for number in range(3):
        first = conversation(generator, turns[0], versions)
        others = [conversation(generator, count, versions) for count in turns[1:]]
        rollouts = [first, *(replace(other, prompt_ids=first.prompt_ids) for other in others)]
        advantages = [generator.gauss(0, 1) for _ in rollouts]
        groups.append(builders.group(f"p{number}", rollouts, [float(a > 0) for a in advantages], advantages))
    return groups


def sampled(rollout):
    """Place in the sequence, id, log-prob and version of every token that the policy sampled."""
    place = len(rollout.prompt_ids)
    for segment in rollout.segments:
        for token, logprob in zip(segment.token_ids, segment.logprobs, strict=True):
            if not segment.is_feedback:
                yield place, token, logprob, segment.version
            place += 1


def by_hand(groups, low, high):
    """Gradient of the clipped surrogate over the sampled tokens alone, and their log-probs by response."""
    policy, losses, scores = builders.random_policy(), [], []
    for item in groups:
        for sample, advantage in zip(item.samples, item.advantages, strict=True):
            logp = policy.model(torch.tensor([list(sample.rollout.token_ids)])).logits[0].log_softmax(-1)
            tokens = list(sampled(sample.rollout))
            scores.append([logp[place - 1, token].item() for place, token, *_ in tokens])
            for place, token, behaviour, _ in tokens:
                ratio = (logp[place - 1, token] - behaviour).exp()
                losses.append(-torch.minimum(ratio * advantage, ratio.clamp(low, high) * advantage))
    torch.stack(losses).mean().backward()
    return builders.gradients(policy), scores


@pytest.mark.parametrize("packing", ["none", "padding_free"])
@pytest.mark.parametrize("parts", [1, 3])
def test_the_gradient_of_turns_is_that_of_a_masked_computation_by_hand(packing, parts, tmp_path):
    builders.random_model().save_pretrained(tmp_path)
    policy, groups = build_policy(ModelOptions(str(tmp_path), packing=packing), 1.0), conversations()
    expected, scores = by_hand(groups, 0.8, 1.3)
    batch = collate(groups, METRICS)
    budget = 100_000 if parts == 1 else builders.budget_for(batch, parts)
    outputs, found = builders.step(policy, FixedBounds(0.8, 1.3), batch, micro_batch_tokens=budget)
    assert torch.allclose(found, expected, rtol=1e-4, atol=1e-6 * float(expected.abs().max()))
    assert len(outputs["tokens"].ratio) == sum(map(len, scores)) == batch.num_tokens
    for found, own in zip(policy.response_logprobs(batch.rollouts, 1000), scores, strict=True):
        assert list(found) == pytest.approx(own, abs=1e-4)


def without_attention():
    """A policy whose next token depends on the last one alone."""
    model = builders.random_model()
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.o_proj.weight.zero_().requires_grad_(False)
    return Policy(model, 1.0)


def test_feedback_changes_nothing_but_through_the_context():
    generator, policy = random.Random(1), without_attention()
    groups = conversations(versions=(0, 1))

    def other(segment):
        """The same feedback with random tokens before its last one, which the next turn is sampled after."""
        if not segment.is_feedback:
            return segment
        changed = [generator.randrange(builders.VOCAB_SIZE) for _ in segment.token_ids[:-1]]
        return Segment.of_feedback(array("i", [*changed, segment.token_ids[-1]]))

    def changed(sample):
        segments = tuple(map(other, sample.rollout.segments))
        return replace(sample, rollout=replace(sample.rollout, segments=segments))

    others = [replace(item, samples=tuple(map(changed, item.samples))) for item in groups]
    assert any(a.samples != b.samples for a, b in zip(groups, others, strict=True))
    found = []
    for batch in (collate(groups, METRICS), collate(others, METRICS)):
        policy.zero_grad()
        outputs, gradient = builders.step(policy, builders.adaptive(), batch)
        columns = outputs["tokens"].columns
        found.append((columns, outputs["bounds"], gradient))
    (columns, bounds, gradient), (other_columns, other_bounds, other_gradient) = found
    for name, value in columns.items():
        assert torch.equal(value.nan_to_num(), other_columns[name].nan_to_num()), name
    assert torch.equal(gradient, other_gradient) and str(bounds) == str(other_bounds)


@pytest.mark.parametrize("oldest", [1, 2])
def test_turns_that_are_too_old_are_context(oldest):
    """Versions 0, 1, 2 in three turns: the first one or two are left out, and so is one whole response."""
    groups = conversations(versions=(0, 1, 2), turns=(3, 3, 1, 2))
    batch = collate(groups, METRICS, oldest_trained=oldest)
    rows = [sample.rollout for item in groups for sample in item.samples]
    for row, rollout in enumerate(rows):
        kept = [place for place, _, _, version in sampled(rollout) if version >= oldest]
        assert batch.response_mask[row].nonzero().flatten().tolist() == kept
        assert batch.response_lengths[row] == len(kept)
        assert not kept or batch.lengths[row] == kept[-1] + 1
    assert batch.version_range() == (oldest, 2)
    weights = batch.response_mask / batch.num_tokens
    for layout in Layout:
        (micro,) = batch.split(10_000, weights, layout)
        columns = micro.sequence.tolist(), micro.position.tolist(), micro.targets.tolist()
        kept = [range(rollout.num_tokens_before(oldest), rollout.length) for rollout in rows]
        expected = [(row, at, rows[row].response_ids[at]) for row, own in enumerate(kept) for at in own]
        assert sorted(zip(*columns, strict=True)) == expected


def test_shares_of_ranks_hold_the_same_tokens():
    def tokens(batches, budget):
        splits = [each.split(budget, each.response_mask.float(), Layout.PACKED) for each in batches]
        columns = [[part.sequence, part.position, part.targets] for parts in splits for part in parts]
        return sorted(torch.cat([torch.stack(each, 1) for each in columns]).tolist())

    batch = collate(conversations(), METRICS)
    assert tokens(split_over_ranks(batch, 3), 40) == tokens([batch], 10_000)
