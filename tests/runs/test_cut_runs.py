"""Runs whose engine samples from a part of the vocabulary, or tells more than the sampled token."""

import pytest
from tests.commands import train_to_end
from tests.runs.written import rows, same, weights

CUT = ("rollout.top_p=0.9", "rollout.top_k=8", "regime=replay")
CENTRED = ("algorithm=score_centering", "regime=replay")


@pytest.mark.parametrize("choices", [CUT, CENTRED], ids=["top_p", "score_centering"])
def test_fresh_tokens_have_a_ratio_of_one_and_a_resumed_run_ends_with_the_same_weights(choices, tmp_path):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    train_to_end(whole, 2, *choices)
    train_to_end(parts, 1, *choices)
    train_to_end(parts, 2, *choices, "resume=auto")
    first = rows(whole)[0]
    assert first["ratio/effective_sample_size"] == pytest.approx(1, abs=1e-6)
    assert first["mismatch/abs_logp_diff_age_0"] < 1e-5
    last = len(rows(whole))
    assert last == len(rows(parts)) and same(weights(whole, last), weights(parts, last))


@pytest.mark.slow
def test_two_ranks_train_as_one_does(tmp_path):
    one, two = tmp_path / "one", tmp_path / "two"
    train_to_end(one, 1, *CUT)
    train_to_end(two, 1, *CUT, "strategy=ddp", "trainer.devices=2", "rollout.placement=controller")
    losses = [[row["train/loss"] for row in rows(folder)] for folder in (one, two)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)
