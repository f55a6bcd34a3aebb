"""Regimes through a real Lightning trainer and a real small model: versions, log-probs and ages of what is
trained on.
"""

import copy
import json
import re
from collections import Counter

import lightning as L
import pytest
import torch
from tests.builders import logprobs, module, random_model, random_policy
from tests.data.rollouts.test_versions import data_module

from bapo_lightning.data.rollouts.regime import Regime
from bapo_lightning.modules.bound_rules import FixedBounds
from bapo_lightning.rollout.hf.engine import HFEngine

NUM_BATCHES = 6


class Witness(L.Callback):
    """Keeps every batch and the policy of every version."""

    def __init__(self):
        self.batches, self.policies, self.versions = [], {}, []

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        self.policies[trainer.global_step] = copy.deepcopy(pl_module.policy)
        self.batches.append(batch)
        self.versions.append(trainer.global_step)


def trained(tmp_path, regime, folder=None, num_batches=NUM_BATCHES):
    random_model().save_pretrained(tmp_path)
    witness, policy = Witness(), random_policy()
    trainer = L.Trainer(
        accelerator="cpu",
        max_epochs=1,
        callbacks=[witness],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    data = data_module(HFEngine(str(tmp_path)), regime, num_rollout_batches=num_batches, folder=folder)
    trainer.fit(module(policy, FixedBounds(0.8, 1.2), max_age=regime.age_bound), datamodule=data)
    return witness, policy


def rollouts(witness):
    return [rollout for batch in witness.batches for rollout in batch.rollouts]


def test_async_with_age_zero_is_on_policy_to_the_bit(tmp_path):
    apart, apart_policy = trained(tmp_path, Regime("on_policy", 1, 1, max_new_tokens=8))
    beside, beside_policy = trained(
        tmp_path, Regime("async", 1, 1, max_new_tokens=8, async_generation=True, max_age=0)
    )
    assert rollouts(apart) == rollouts(beside)
    assert all(
        torch.equal(a, b) for a, b in zip(apart_policy.parameters(), beside_policy.parameters(), strict=True)
    )


@pytest.mark.parametrize(
    "regime",
    [
        Regime("async", 1, 2, max_new_tokens=8, async_generation=True, max_age=3),
        Regime("async_replay", 2, 2, max_new_tokens=8, async_generation=True, max_age=7),
        Regime("partial", 1, 2, max_new_tokens=8, partial_tokens=3),
        Regime("async_partial", 1, 2, max_new_tokens=8, async_generation=True, max_age=5, partial_tokens=2),
        Regime("reuse", 1, 2, max_new_tokens=8, max_age=5, reuse_share=0.5, max_reuses=2),
        Regime(
            "partial_reuse",
            1,
            2,
            max_new_tokens=8,
            max_age=9,
            partial_tokens=3,
            reuse_share=0.5,
            max_reuses=1,
        ),
    ],
    ids=lambda regime: regime.name,
)
def test_every_token_keeps_the_version_and_the_log_prob_of_the_policy_that_sampled_it(tmp_path, regime):
    path = tmp_path / "ledger.jsonl"
    witness, _ = trained(tmp_path, regime, tmp_path)
    assert len(witness.batches) == NUM_BATCHES * regime.updates_per_rollout_batch
    for version, batch in zip(witness.versions, witness.batches, strict=True):
        oldest, newest = batch.version_range()
        assert version - newest >= 0 and version - oldest <= regime.age_bound
    for rollout in {id(rollout): rollout for rollout in rollouts(witness)}.values():
        versions = [segment.version for segment in rollout.segments]
        assert versions == sorted(set(versions))
        context = list(rollout.prompt_ids)
        for segment in rollout.segments:
            expected = logprobs(witness.policies[segment.version], context, list(segment.token_ids))
            torch.testing.assert_close(
                torch.tensor(segment.logprobs), torch.tensor(expected), atol=1e-4, rtol=0
            )
            context += segment.token_ids
    fates = [json.loads(line) for line in path.read_text().splitlines()]
    assert set(Counter((row["epoch"], row["problem"]) for row in fates).values()) == {1}
    # Beside training, passes may all fall between two updates.
    if regime.is_partial and not regime.async_generation:
        assert max(len(rollout.segments) for rollout in rollouts(witness)) > 1


def test_partial_rollouts_end_at_the_cap_on_length_and_on_segments(tmp_path):
    regime = Regime("partial", 1, 2, max_new_tokens=8, partial_tokens=2, max_segments=2)
    witness, _ = trained(tmp_path, regime)
    assert max(rollout.length for rollout in rollouts(witness)) <= 8
    assert max(len(rollout.segments) for rollout in rollouts(witness)) == 2


def test_masked_tokens_are_context_and_the_rest_stays_within_the_age(tmp_path):
    regime = Regime("partial", 1, 2, max_new_tokens=8, partial_tokens=2, max_age=3, stale_action="mask")
    witness, _ = trained(tmp_path, regime)
    assert sum(batch.num_masked_tokens for batch in witness.batches) > 0
    for version, batch in zip(witness.versions, witness.batches, strict=True):
        ages = version - batch.version[batch.response_mask]
        assert ages.min() >= 0 and ages.max() <= 3
        assert batch.num_tokens == int(batch.response_mask.sum())


def test_groups_are_reused_at_most_so_often_with_their_own_log_probs(tmp_path):
    regime = Regime("reuse", 1, 1, max_new_tokens=8, max_age=9, reuse_share=0.5, max_reuses=2)
    witness, _ = trained(tmp_path, regime, num_batches=8)
    uses = Counter(
        id(group.samples[0].rollout.segments[0]) for batch in witness.batches for group in batch.groups
    )
    assert set(uses.values()) == {1, 2, 3}
    assert all(len(batch.groups) == 4 for batch in witness.batches)
    first = witness.batches[0].groups
    assert all(group.ready_version == 0 for group in first)
    fresh = [
        sum(group.ready_version == version for group in batch.groups)
        for version, batch in enumerate(witness.batches)
    ]
    assert fresh[0] == 4 and set(fresh[1:]) == {2}


PARTIAL = {"max_new_tokens": 32, "partial_tokens": 8}
REUSE = {"reuse_share": 0.5, "max_reuses": 2, "max_age": 15}


def problems(**options):
    node = {"_target_": "bapo_lightning.data.rollouts.regime.Regime", "name": "mine", "epochs": 1}
    return list(Regime.problems(node | {"minibatches": 4} | options))


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"max_age": 2}, "max_age=2: .* write max_age=3 or fewer updates"),
        ({"async_generation": True}, "async_generation=true needs max_age: .* ahead is max_age=7"),
        ({"reuse_share": 0.5, "max_reuses": 2}, "reuse_share=0.5 needs max_age: .* ahead is max_age=7"),
        ({"async_generation": True} | REUSE, "async_generation=true with reuse_share: .* how old"),
        ({"stale_action": "mask"}, "stale_action=mask without partial_tokens: .* write stale_action=evict"),
        ({"max_segments": 2}, "max_segments=2 without partial_tokens has no effect"),
        (REUSE | {"max_reuses": 0}, "max_reuses=0 with reuse_share=0.5 reuses nothing; write max_reuses=1"),
        (REUSE | {"max_age": 6}, "max_age=6 lets no group be reused: .* write max_age=7 at least"),
        ({"max_reuses": 1}, "max_reuses=1 without reuse_share has no effect; write regime=reuse"),
    ],
)
def test_one_mistake_gives_one_problem(options, problem):
    (found,) = problems(**options)
    assert re.match(problem, found)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"async_generation": True, "max_age": 7, **PARTIAL},
        PARTIAL | {"stale_action": "mask", "max_age": 7, "max_segments": 2},
        REUSE,
    ],
)
def test_options_that_go_together_have_no_problem(options):
    assert problems(**options) == []
