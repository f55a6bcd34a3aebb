"""What is measured of a batch that enters training, by hand."""

import math
from array import array
from dataclasses import replace

import pytest
from tests.builders import group, rollout

from bapo_lightning.data.batches.batch import collate, split_over_ranks
from bapo_lightning.data.rollouts import stages
from bapo_lightning.data.rollouts.stages import with_entry_scores, with_reference_logprobs
from bapo_lightning.types import NO_VERSION, FinishReason, Origin, Rollout, Segment

SEGMENTS = (
    Segment(array("i", [1, 2]), array("f", [-1.0, -2.0]), 3),
    Segment(array("i", [3]), array("f", [-0.5]), 4),
)
RESUMED = Rollout(array("i", [5]), SEGMENTS, FinishReason.STOP)
GROUPS = [
    group("p", [rollout([5, 6], [7, 8], [-0.1, -0.2], version=4), RESUMED], [1.0, 0.0], [1.0, -1.0]),
    group("q", [rollout([4], [9], [-0.7], version=4)], [1.0], [0.0]),
]
SCORES = {2: [-0.2, -0.2], 3: [-9.0, -9.0, -0.2], 1: [-0.7]}  # by response length


class Trainer:
    """Scores as listed."""

    def response_scores(self, rollouts, token_budget, names):
        assert names == ("logp",)
        return [(array("f", SCORES[item.length]),) for item in rollouts]

    def reference_logprobs(self, rollouts, token_budget):
        return [array("f", [-float(item.length)] * item.length) for item in rollouts]


class EntryTrainer:
    """Scores each token with 10 times its place, less in its log-prob."""

    def response_scores(self, rollouts, token_budget, names):
        shift = {"logp": -100.0, "entropy": 0.0, "mean_logp": -50.0}
        places = [[10 * token for token in range(item.length)] for item in rollouts]
        return [tuple(array("f", [shift[name] + at for at in own]) for name in names) for own in places]


def test_an_expert_gets_the_entropies_of_the_policy_and_no_proximal_log_probs():
    expert = rollout([5, 6], [7, 8], [0.0, 0.0], version=NO_VERSION)
    groups = [group("p", [replace(expert, origin=Origin.EXPERT), RESUMED], [1.0, 0.0], [1.0, -1.0])]
    names = ("logp", "entropy", "mean_logp")
    (first, second) = with_entry_scores(groups, EntryTrainer(), 100, 4, names)[0][0].samples
    assert "proximal_logp" not in first.scores and first.scores["entry_entropy"] == array("f", [0, 10])
    assert second.scores["proximal_logp"] == array("f", [-100, -90, -80])
    assert second.scores["entry_entropy"] == array("f", [0, 10, 20])
    assert second.scores["entry_mean_logp"] == array("f", [-50, -40, -30])
    assert (first.rollout, second.rollout) == tuple(sample.rollout for sample in groups[0].samples)
    # By itself, a correction leaves experts alone.
    (first, second) = with_entry_scores(groups, EntryTrainer(), 100, 4)[0][0].samples
    assert first is groups[0].samples[0] and second.scores["proximal_logp"] == array("f", [-100, -90, -80])


def test_only_tokens_of_the_current_weights_count_as_mismatch(monkeypatch):
    clock = iter([1.0, 3.5, 4.0, 4.0])
    monkeypatch.setattr(stages.time, "perf_counter", lambda: next(clock))
    scored, metrics = with_entry_scores(GROUPS, Trainer(), token_budget=100, version=4)
    for before, after in zip(GROUPS, scored, strict=True):
        found = [{"proximal_logp": array("f", SCORES[one.rollout.length])} for one in before.samples]
        samples = [replace(one, scores=own) for one, own in zip(before.samples, found, strict=True)]
        assert after == replace(before, samples=tuple(samples))
    assert metrics.pop("time/proximal_seconds") == 2.5
    _, none = with_entry_scores(GROUPS, Trainer(), token_budget=100, version=5)
    assert set(none) == {"time/proximal_seconds"}
    # -0.1 and 0 in the first rollout, +0.3 in the resumed one's second segment, 0 in the last; -8 and -7 are
    # staleness
    kl = (math.exp(-0.1) - 0.9 + math.exp(0.3) - 1.3) / 4
    expected = {"abs_logp_diff_mean": 0.1, "abs_logp_diff_max": 0.3, "logp_diff_mean": 0.05, "kl": kl}
    expected = {f"mismatch/{name}": value for name, value in {**expected, "ratio_max": math.exp(0.3)}.items()}
    assert metrics == pytest.approx(expected, rel=1e-4)


def test_the_first_weights_score_every_sample_whoever_wrote_it():
    expert = replace(RESUMED, origin=Origin.EXPERT)
    scored, metrics = with_reference_logprobs([*GROUPS, group("e", [expert], [1.0])], Trainer(), 100)
    found = [sample.scores["reference_logp"].tolist() for made in scored for sample in made.samples]
    assert found == [[-2.0] * 2, [-3.0] * 3, [-1.0], [-3.0] * 3]
    assert all("proximal_logp" not in sample.scores for made in scored for sample in made.samples)
    assert set(metrics) == {"time/reference_seconds"}


def test_reference_log_probs_reach_the_tokens_that_are_trained_on():
    scored, _ = with_reference_logprobs(GROUPS, Trainer(), 100)
    batch = collate(scored, {}, oldest_trained=4)
    (micro_batch,) = batch.split(100, batch.response_mask.float())
    found = micro_batch.scores["reference_logp"].tolist()
    of_sequence = dict(zip(micro_batch.sequence.tolist(), found, strict=True))
    assert of_sequence == {0: -2.0, 1: -3.0, 2: -1.0}
    shares = split_over_ranks(batch, 2)
    assert sum(float(share.scores["reference_logp"].sum()) for share in shares) == -4.0 - 3.0 - 1.0
