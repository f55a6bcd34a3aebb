"""The promises of `RolloutEngine`, run against every engine."""

from array import array

import pytest
import torch
from tests.builders import VOCAB_SIZE, random_model, random_policy

from bapo_lightning.errors import EngineError
from bapo_lightning.rollout.engine import GenerationRequest, SamplingParams
from bapo_lightning.rollout.hf_engine import HFEngine, sample_tokens
from bapo_lightning.types import FinishReason

SAMPLING = SamplingParams(temperature=1.0, stop_token_ids=(1,))


@pytest.fixture
def engine(tmp_path):
    random_model().save_pretrained(tmp_path)
    made = HFEngine(str(tmp_path), seed=0, max_rows=7)
    made.load_weights(random_policy().named_weights(), version=3)
    yield made
    made.close()


def requests(count: int, limit: int = 12) -> list[GenerationRequest]:
    return [
        GenerationRequest(array("i", [(3 * row + column) % VOCAB_SIZE for column in range(1 + row % 5)]), limit) for row in range(count)
    ]


def test_every_request_gets_one_generation_in_order_with_the_engines_version(engine):
    wanted = [GenerationRequest(array("i", [5, row]), 1 + row) for row in range(9)]
    generations = engine.generate(wanted, SamplingParams(1.0, stop_token_ids=()))
    assert [len(generation.segment.token_ids) for generation in generations] == [1 + row for row in range(9)]
    assert {generation.segment.version for generation in generations} == {3}
    assert {generation.finish for generation in generations} == {FinishReason.LENGTH}


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_log_probs_are_those_of_the_sampling_distribution_for_ragged_prompts_and_early_stops(engine, temperature):
    policy = random_policy(temperature=temperature)
    wanted = requests(40)
    for request, generation in zip(wanted, engine.generate(wanted, SamplingParams(temperature, (1,))), strict=True):
        tokens = torch.tensor([[*request.token_ids, *generation.segment.token_ids]])
        with torch.no_grad():
            logp = (policy.model(tokens).logits[0, :-1] / temperature).log_softmax(-1).gather(-1, tokens[0, 1:, None])[:, 0]
        expected = logp[len(request.token_ids) - 1 :]
        torch.testing.assert_close(torch.tensor(generation.segment.logprobs), expected, atol=2e-5, rtol=1e-5)


def test_a_response_ends_with_its_first_stop_token_and_says_so(engine):
    generations = engine.generate(requests(60, limit=30), SamplingParams(1.0, (1, 2, 3, 4)))
    stopped = [generation for generation in generations if generation.finish is FinishReason.STOP]
    assert stopped
    for generation in stopped:
        assert generation.segment.token_ids[-1] in (1, 2, 3, 4)
        assert not set(generation.segment.token_ids[:-1]) & {1, 2, 3, 4}


def test_a_seeded_draw_repeats_and_leaves_the_engines_stream_and_the_global_ones_alone(engine):
    state = torch.get_rng_state()
    first = engine.generate(requests(10), SAMPLING, seed=11)
    assert engine.generate(requests(10), SAMPLING, seed=11) == first
    assert torch.equal(torch.get_rng_state(), state)
    assert engine.generate(requests(10), SAMPLING) != engine.generate(requests(10), SAMPLING)


def test_sampled_frequencies_follow_the_policy(engine):
    wanted = [GenerationRequest(array("i", [4, 7]), 1)] * 7000
    sampled = torch.tensor([generation.segment.token_ids[0] for generation in engine.generate(wanted, SAMPLING)])
    frequency = torch.bincount(sampled, minlength=VOCAB_SIZE) / len(sampled)
    with torch.no_grad():
        expected = random_policy().model(torch.tensor([[4, 7]])).logits[0, -1].softmax(-1)
    assert (frequency - expected).abs().max() < 4 * (0.25 / 7000) ** 0.5


def test_greedy_takes_the_best_token_with_log_prob_zero():
    tokens, logprobs = sample_tokens(torch.tensor([[0.0, 3.0, 1.0]]), 0.0, torch.Generator())
    assert (tokens.tolist(), logprobs.tolist()) == ([1], [0.0])


def test_scores_equal_the_policys(engine):
    sequences = [array("i", [1, 2, 3, 4, 5]), array("i", [9, 8])]
    for got, expected in zip(engine.score(sequences), random_policy().score(sequences), strict=True):
        assert got.tolist() == pytest.approx(expected.tolist(), abs=2e-5)


def test_an_engine_without_weights_refuses_to_generate(tmp_path):
    random_model().save_pretrained(tmp_path)
    with pytest.raises(EngineError, match="before it was given weights"):
        HFEngine(str(tmp_path), seed=0).generate(requests(1), SAMPLING)


def test_weights_that_do_not_all_arrive_are_an_error(engine):
    weights = list(random_policy().named_weights())
    with pytest.raises(EngineError, match="left 1 weights unset"):
        engine.load_weights(weights[:-1], version=4)
    with pytest.raises(EngineError, match="does not have"):
        engine.load_weights([("unknown.weight", torch.zeros(1))], version=4)
    with pytest.raises(EngineError, match="has shape"):
        engine.load_weights([(weights[0][0], torch.zeros(1))], version=4)
    assert engine.version == 3
