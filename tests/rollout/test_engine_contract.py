"""The in-process transformers engine keeps the promises of `RolloutEngine`; vLLM's engines: tests/vllm."""

import numpy as np
import pytest
import torch
from tests.builders import random_model, random_policy
from tests.rollout.contract import SAMPLING, EngineContract, requests

from bapo_lightning.errors import EngineError
from bapo_lightning.rollout.engine import SamplingParams
from bapo_lightning.rollout.hf_engine import HFEngine, sample_tokens
from bapo_lightning.rollout.seeds import request_seed, uniforms


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    random_model().save_pretrained(folder)
    made = HFEngine(str(folder), max_rows=7)
    made.load_weights(random_policy(), version=3)
    yield made
    made.close()


class TestHFEngine(EngineContract):
    """Everything is inherited."""


def test_greedy_takes_the_best_token_with_log_prob_zero():
    tokens, logprobs = sample_tokens(torch.tensor([[0.0, 3.0, 1.0]]), SamplingParams(0.0, ()), torch.zeros(1))
    assert (tokens.tolist(), logprobs.tolist()) == ([1], [0.0])


def test_a_draw_picks_the_token_at_its_share_of_the_cumulative_probability():
    logits = torch.tensor([0.5, 0.0, 0.25, 0.25]).log().expand(5, 4)
    draws = torch.tensor([0.0, 0.49, 0.51, 0.74, 0.999999999], dtype=torch.float64)
    tokens, logprobs = sample_tokens(logits, SamplingParams(1.0, ()), draws)
    assert tokens.tolist() == [0, 0, 2, 2, 3]  # never token 1, which has no mass
    assert logprobs.exp().tolist() == pytest.approx([0.5, 0.5, 0.25, 0.25, 0.25])


def test_an_engine_without_weights_refuses_to_generate(tmp_path):
    random_model().save_pretrained(tmp_path)
    with pytest.raises(EngineError, match="before it was given weights"):
        HFEngine(str(tmp_path)).generate(requests(1), SAMPLING)


def test_the_draws_are_the_published_splitmix64_stream():
    # Reference values of the generator's author for seed 1234567.
    stream = [6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431]
    got = [float(uniforms(np.array([1234567], dtype=np.uint64), position)[0]) for position in range(4)]
    assert got == [(value >> 11) * 2.0**-53 for value in stream]


def test_seeds_differ_in_everything_they_are_made_of_and_fit_into_63_bits():
    seeds = {request_seed(run, version, name, index) for run in (0, 1) for version in (0, 7) for name in ("a", "b") for index in range(50)}
    assert len(seeds) == 400
    assert all(0 <= seed < 2**63 for seed in seeds)
