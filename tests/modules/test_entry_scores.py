"""Scores at entry, from the trainer's weights at that time to the columns that an objective sees."""

from array import array
from dataclasses import replace

import pytest
import torch
from tests.builders import random_model, random_policy, stale_batch, step

from bapo_lightning.data.batches.batch import blank_batch, collate, split_over_ranks
from bapo_lightning.data.batches.model_input import model_input
from bapo_lightning.data.rollouts.stages import with_entry_scores
from bapo_lightning.modules.bound_rules import FixedBounds
from bapo_lightning.modules.policy.packing import PACKED_SDPA
from bapo_lightning.modules.policy.policy import Policy
from bapo_lightning.modules.token_tables import token_table
from bapo_lightning.objectives.objective import needs_of, scores_at_entry
from bapo_lightning.objectives.token_table import reads
from bapo_lightning.types import Segment

BOUNDS, CPU = FixedBounds(0.8, 1.28), torch.device("cpu")
NAMES = ("entropy", "mean_logp")
METRICS = {"rollout/num_samples": 0.0, "rollout/num_tokens": 0.0}


@reads("entry_entropy", "mean_logp", "entry_mean_logp")
def compares(table):
    """An objective that looks at how entropy and mean log-prob have changed since entry."""
    entropy, mean_logp = table.entropy.detach() - table["entry_entropy"], table["mean_logp"]
    return table.log_ratio * (entropy + mean_logp - table["entry_mean_logp"])


def exact_policy(packed=False, temperature=0.7):
    model = random_model().double()
    if packed:
        model.set_attn_implementation(PACKED_SDPA)
    policy = Policy(model, temperature, packed)
    policy.scores_mean_logp = True
    return policy


@torch.no_grad()
def by_full_logits(policy, rollouts):
    """Log-prob, entropy and mean log-prob of each response token, from all logits in float64."""
    found = []
    for item in rollouts:
        tokens = torch.tensor([[*item.prompt_ids, *item.response_ids]])
        logits = policy.model(tokens).logits[0, -item.length - 1 : -1].double()
        logp = (logits / policy.temperature).log_softmax(-1)
        own = logp.gather(-1, tokens[0, -item.length :, None])[:, 0]
        found.append(torch.stack([own, -(logp.exp() * logp).sum(-1), logp.mean(-1)]))
    return found


def entered(policy, names=NAMES):
    """Groups of random samples that have entered training under the weights of a policy."""
    policy.scores_mean_logp = True
    return with_entry_scores(stale_batch(policy).groups, policy, 300, 0, names)[0]


@pytest.mark.parametrize(("budget", "packed"), [(1, False), (60, False), (60, True), (10_000, False)])
def test_scores_are_those_of_the_full_logits_in_the_order_of_rollouts_and_names(budget, packed):
    policy, rollouts = exact_policy(packed), stale_batch(random_policy()).rollouts
    expected = by_full_logits(exact_policy(), rollouts)
    found = policy(model_input(rollouts, CPU, policy.layout))
    torch.testing.assert_close(torch.stack(found), torch.cat(expected, 1), rtol=1e-11, atol=1e-11)
    assert found[0].requires_grad and not found[2].requires_grad
    scored = policy.response_scores(rollouts, budget, ("mean_logp", "entropy", "logp"))
    for own, scores in zip(scored, expected, strict=True):
        torch.testing.assert_close(torch.tensor(own).double(), scores.flip(0), rtol=1e-6, atol=1e-6)


def test_the_table_has_the_policy_at_entry_next_to_the_present_one():
    policy = random_policy()
    groups = entered(policy)
    batch = collate(groups, METRICS)
    before = torch.cat(by_full_logits(policy, batch.rollouts), 1)[1:].float()
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.mul_(1.05)
    after = torch.cat(by_full_logits(policy, batch.rollouts), 1)[1:].float()
    assert (before - after).abs().mean(1).min() > 0.03, "a policy that stays as it is shows nothing"
    for parts in (1, 2):
        splits = [
            share.split(10_000, share.response_mask.float()) for share in split_over_ranks(batch, parts)
        ]
        tables = [token_table(policy, micro_batch, 0) for split in splits for micro_batch in split]
        order = torch.cat([table.sequence for table in tables]).argsort(stable=True)
        names = ("entry_entropy", "entry_mean_logp", "entropy", "mean_logp")
        for name, expected in zip(names, (*before, *after), strict=True):
            found = torch.cat([table.columns[name] for table in tables])[order]
            torch.testing.assert_close(found.detach(), expected, rtol=1e-4, atol=1e-4)


def test_a_response_that_was_resumed_keeps_the_scores_of_the_tokens_that_are_trained_on():
    policy = random_policy()
    (group,) = stale_batch(policy, num_groups=1).groups
    lengths = []

    def resumed(rollout):
        ids, logprobs, half = rollout.response_ids, rollout.logprobs, rollout.length // 2
        lengths.append(rollout.length - half)
        segments = (Segment(ids[:half], logprobs[:half], 3), Segment(ids[half:], logprobs[half:], 4))
        return replace(rollout, segments=segments)

    samples = tuple(replace(sample, rollout=resumed(sample.rollout)) for sample in group.samples)
    policy.scores_mean_logp = True
    groups, _ = with_entry_scores([replace(group, samples=samples)], policy, 300, 4, NAMES)
    scores = [sample.scores for sample in groups[0].samples]
    assert all(isinstance(own["entry_entropy"], array) and "proximal_logp" not in own for own in scores)
    batch = collate(groups, METRICS, oldest_trained=4)
    (micro_batch,) = batch.split(10_000, batch.response_mask.float())
    pairs = zip(by_full_logits(policy, batch.rollouts), lengths, strict=True)
    expected = [own[:, own.shape[1] - length :] for own, length in pairs]
    order = micro_batch.sequence.argsort(stable=True)
    found = torch.stack([micro_batch.scores[f"entry_{name}"][order] for name in NAMES])
    torch.testing.assert_close(found, torch.cat(expected, 1)[1:].float(), rtol=1e-4, atol=1e-4)


def test_an_objective_that_needs_nothing_of_the_entry_costs_nothing_and_has_no_column():
    policy = random_policy()
    batch = stale_batch(policy)
    tokens = step(policy, BOUNDS, batch)[0]["tokens"]
    assert batch.scores == {} and len(policy(model_input(batch.rollouts, CPU))) == 2
    assert tokens.more.keys() == {"step"}


def test_ratios_stay_those_to_the_policy_that_sampled():
    policy = random_policy()
    plain, scored = stale_batch(policy), collate(entered(policy), METRICS)
    assert torch.equal(scored.proximal_logp, plain.proximal_logp)
    recomputed = collate(entered(policy, ("logp", *NAMES)), METRICS)
    assert recomputed.scores.keys() == {f"entry_{name}" for name in NAMES}
    assert not torch.equal(recomputed.proximal_logp, recomputed.behaviour_logp)


def test_a_blank_micro_batch_adds_nothing():
    policy = random_policy()
    blank = blank_batch(collate(entered(policy, scores_at_entry(compares)), METRICS))
    policy.serve(needs_of(compares))
    (micro_batch,) = blank.split(100, torch.zeros(1, 2))
    table = token_table(policy, micro_batch, 0).with_bounds(torch.tensor(0.8), torch.tensor(1.2))
    (table.weight * compares(table)).sum().backward()
    assert all(parameter.grad.count_nonzero() == 0 for parameter in policy.parameters())
