"""What is measured of a batch that enters training, by hand."""

import math
from array import array

import pytest
from tests.builders import group, rollout

from bapo_lightning.data.rollouts import proximal
from bapo_lightning.data.rollouts.proximal import with_proximal_logprobs
from bapo_lightning.types import FinishReason, Rollout, Segment

RESUMED = Rollout(
    array("i", [5]),
    (
        Segment(array("i", [1, 2]), array("f", [-1.0, -2.0]), 3),
        Segment(array("i", [3]), array("f", [-0.5]), 4),
    ),
    FinishReason.STOP,
)
GROUPS = [
    group("p", [rollout([5, 6], [7, 8], [-0.1, -0.2], version=4), RESUMED], [1.0, 0.0], [1.0, -1.0]),
    group("q", [rollout([4], [9], [-0.7], version=4)], [1.0], [0.0]),
]
SCORES = {2: [-0.2, -0.2], 3: [-9.0, -9.0, -0.2], 1: [-0.7]}  # by response length


class Trainer:
    """Scores as listed."""

    def response_logprobs(self, rollouts, token_budget):
        return [array("f", SCORES[item.length]) for item in rollouts]


def test_every_sample_gets_its_own_log_probs_and_keeps_all_else():
    scored, _ = with_proximal_logprobs(GROUPS, Trainer(), token_budget=100, version=4)
    assert [len(found.samples) for found in scored] == [2, 1]
    for before, after in zip(GROUPS, scored, strict=True):
        assert (after.problem, after.advantages, after.rewards) == (
            before.problem,
            before.advantages,
            before.rewards,
        )
        for old, new in zip(before.samples, after.samples, strict=True):
            assert new.rollout is old.rollout and new.proximal_logprobs == array(
                "f", SCORES[old.rollout.length]
            )


def test_only_tokens_of_the_current_weights_count_as_mismatch(monkeypatch):
    clock = iter([1.0, 3.5])
    monkeypatch.setattr(proximal.time, "perf_counter", lambda: next(clock))
    _, metrics = with_proximal_logprobs(GROUPS, Trainer(), token_budget=100, version=4)
    assert metrics.pop("time/proximal_seconds") == 2.5
    # -0.1 and 0 in the first rollout, +0.3 in the resumed one's second segment, 0 in the last; -8 and -7 are
    # staleness
    assert metrics == pytest.approx(
        {
            "mismatch/abs_logp_diff_mean": 0.1,
            "mismatch/abs_logp_diff_max": 0.3,
            "mismatch/logp_diff_mean": 0.05,
            "mismatch/ratio_max": math.exp(0.3),
            "mismatch/kl": (math.exp(-0.1) - 0.9 + math.exp(0.3) - 1.3) / 4,
        },
        rel=1e-4,
    )


def test_a_batch_without_a_token_of_the_current_weights_says_nothing_about_mismatch():
    _, metrics = with_proximal_logprobs(GROUPS, Trainer(), token_budget=100, version=5)
    assert set(metrics) == {"time/proximal_seconds"}
