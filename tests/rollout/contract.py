"""The promises of `RolloutEngine`, as tests that every engine's own test class inherits.

The class that inherits gives the fixture `engine`: an engine that holds `random_policy()` as version 3.
Engines are slow to start, so one may serve all tests; each test leaves it with those weights.
"""

import os
import random
from array import array
from dataclasses import replace

import numpy as np
import pytest
import torch
from tests.builders import VOCAB_SIZE, random_policy
from tests.rollout.faults import LOST, OldWeights, planted_on_the_way, scale, step

from bapo_lightning.rollout.engine import EVERY, GenerationRequest, SamplingParams
from bapo_lightning.rollout.weight_sync import WeightSync
from bapo_lightning.system.errors import EngineError
from bapo_lightning.system.phases import phase
from bapo_lightning.types import FinishReason

SAMPLING = SamplingParams(temperature=1.0, stop_token_ids=(1,))
# All of a distribution that is cut, and the likeliest of one that is not, whichever is sampled.
NOTING = [
    SamplingParams(0.8, (1,), top_k=5, num_candidates=EVERY),
    SamplingParams(1.0, (1,), top_p=0.7, num_candidates=EVERY),
    SamplingParams(1.0, (1,), num_candidates=4),
]
PLAIN = [SamplingParams(1.0, (1,)), SamplingParams(0.6, (1,))]
PLAIN += [SamplingParams(0.8, (1,), top_k=5), SamplingParams(1.0, (1,), top_p=0.7)]
TOLERANCE = 1e-4  # nats, float32 on both sides


class SomeWeights:
    """A source that leaves weights out, renames or reshapes them."""

    def __init__(self, weights):
        self.weights = weights

    def named_weights(self, wanted=None):
        return iter(self.weights)


def requests(count, limit=12):
    prompts = [[(3 * row + column) % VOCAB_SIZE for column in range(1 + row % 5)] for row in range(count)]
    return [GenerationRequest(array("i", ids), limit, seed=row) for row, ids in enumerate(prompts)]


def expected_distributions(policy, request, token_ids, sampling):
    """Log-probs of all tokens at each place, [T, V], by the trainer's model and a textbook nucleus."""
    tokens = torch.tensor([[*request.token_ids, *token_ids]])
    with torch.no_grad():
        logits = policy.model(tokens).logits[0, len(request.token_ids) - 1 : -1] / sampling.temperature
    for row in logits:
        order = row.argsort(descending=True)
        if sampling.top_k:
            row[order[sampling.top_k :]] = -torch.inf
        mass = row[order].softmax(-1).cumsum(-1)
        row[order[1:][mass[:-1] >= sampling.top_p]] = -torch.inf
    return logits.log_softmax(-1)


def expected_logprobs(policy, request, generation, sampling):
    """Log-probs of the sampled tokens."""
    token_ids = generation.segment.token_ids
    every = expected_distributions(policy, request, token_ids, sampling)
    return every.gather(-1, torch.tensor(token_ids)[:, None])[:, 0]


def places(candidates):
    """Tokens and log-probs of each place."""
    ends = np.cumsum(candidates.counts)
    starts = ends - np.array(candidates.counts)
    return [
        dict(zip(candidates.token_ids[start:end], candidates.logprobs[start:end], strict=True))
        for start, end in zip(starts, ends, strict=True)
    ]


def assert_noted(policy, wanted, segments, sampling):
    """All tokens that could have been sampled were noted, or so many likeliest, with their log-probs."""
    for request, segment in zip(wanted, segments, strict=True):
        expected = expected_distributions(policy, request, segment.token_ids, sampling)
        found = places(segment.candidates)
        assert len(found) == len(segment.token_ids)
        for row, place in zip(expected, found, strict=True):
            likeliest = row.topk(min(sampling.num_candidates, int(row.isfinite().sum()))).indices.tolist()
            assert sorted(place) == sorted(likeliest)
            own = row[list(place)]
            torch.testing.assert_close(torch.tensor([*place.values()]), own, atol=TOLERANCE, rtol=1e-5)


def assert_scored_by(policy, wanted, generations, sampling=SAMPLING):
    for request, generation in zip(wanted, generations, strict=True):
        expected = expected_logprobs(policy, request, generation, sampling)
        found = torch.tensor(generation.segment.logprobs)
        torch.testing.assert_close(found, expected, atol=TOLERANCE, rtol=1e-5)


def tokens(generations):
    return [generation.segment.token_ids for generation in generations]


class EngineContract:
    def test_it_counts_at_most_as_many_samples_as_were_asked_for(self, engine):
        with phase("sampling", 40) as sampling:
            engine.generate(requests(40), SAMPLING)
        assert 0 <= sampling.done <= 40

    def test_a_request_without_a_prompt_is_an_error_and_leaves_nothing_in_the_engine(self, engine):
        empty = GenerationRequest(array("i"), 5, seed=0)
        with pytest.raises(EngineError, match="request 3 has no prompt tokens"):
            engine.generate([*requests(3), empty], SAMPLING)
        engine.load_weights(random_policy(), version=3)
        assert len(engine.generate(requests(3), SAMPLING)) == 3

    def test_every_request_gets_one_generation_in_order_with_the_engines_version(self, engine):
        wanted = [GenerationRequest(array("i", [5, row]), 1 + row, seed=row) for row in range(9)]
        generations = engine.generate(wanted, SamplingParams(1.0, stop_token_ids=()))
        assert [len(each) for each in tokens(generations)] == list(range(1, 10))
        assert {generation.segment.version for generation in generations} == {3}
        assert {generation.finish for generation in generations} == {FinishReason.LENGTH}

    @pytest.mark.parametrize("sampling", PLAIN, ids=["T=1", "T=0.6", "top_k=5", "top_p=0.7"])
    def test_log_probs_are_those_of_the_sampling_distribution_for_ragged_prompts_and_early_stops(
        self, engine, sampling
    ):
        wanted = requests(40)
        assert_scored_by(random_policy(), wanted, engine.generate(wanted, sampling), sampling)

    @pytest.mark.parametrize("sampling", NOTING, ids=["top_k", "top_p", "a head"])
    def test_it_notes_the_tokens_that_could_have_been_sampled_where_it_is_asked_to(self, engine, sampling):
        wanted = requests(20)
        made = engine.generate(wanted, sampling)
        assert_scored_by(random_policy(), wanted, made, sampling)
        assert_noted(random_policy(), wanted, [each.segment for each in made], sampling)
        assert engine.generate(wanted[:1], SAMPLING)[0].segment.candidates is None

    def test_greedy_takes_the_best_tokens_with_log_prob_zero(self, engine):
        best = SamplingParams(1.0, (), top_k=1)
        generations = engine.generate(requests(6), SamplingParams(0.0, ()))
        for request, generation in zip(requests(6), generations, strict=True):
            expected = expected_logprobs(random_policy(), request, generation, best)
            assert expected.tolist() == generation.segment.logprobs.tolist() == [0.0] * 12

    def test_a_response_ends_with_its_first_stop_token_and_says_so(self, engine):
        generations = engine.generate(requests(60, limit=30), SamplingParams(1.0, (1, 2, 3, 4)))
        stopped = [generation for generation in generations if generation.finish is FinishReason.STOP]
        assert stopped
        for generation in stopped:
            assert generation.segment.token_ids[-1] in (1, 2, 3, 4)
            assert not set(generation.segment.token_ids[:-1]) & {1, 2, 3, 4}

    def test_equal_seeds_give_equal_tokens_whatever_is_sampled_with_them(self, engine):
        first = tokens(engine.generate(requests(10), SAMPLING))
        assert tokens(engine.generate(requests(10), SAMPLING)) == first
        assert tokens(engine.generate(requests(30)[::-1], SAMPLING))[:19:-1] == first
        other_seeds = [replace(request, seed=request.seed + 100) for request in requests(10)]
        assert tokens(engine.generate(other_seeds, SAMPLING)) != first

    def test_the_trainers_random_state_threads_and_environment_are_left_alone(self, engine):
        def state():
            states = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()
            functions = torch.set_num_threads, torch.accelerator.synchronize, torch.accelerator.empty_cache
            return *states, *functions, dict(os.environ)

        before = state()
        engine.generate(requests(10), SAMPLING)
        engine.load_weights(random_policy(), version=3)
        assert state() == before

    def test_sampled_frequencies_follow_the_policy(self, engine):
        wanted = [GenerationRequest(array("i", [4, 7]), 1, seed) for seed in range(3000)]
        sampled = torch.tensor([first for (first,) in tokens(engine.generate(wanted, SAMPLING))])
        frequency = torch.bincount(sampled, minlength=VOCAB_SIZE) / len(sampled)
        with torch.no_grad():
            expected = random_policy().model(torch.tensor([[4, 7]])).logits[0, -1].softmax(-1)
        assert (frequency - expected).abs().max() < 4 * (0.25 / len(wanted)) ** 0.5

    def test_after_each_of_five_syncs_of_changed_weights_both_sides_agree(self, engine):
        policy, sync = random_policy(), WeightSync(tolerance=TOLERANCE, probe_tokens=40)
        # Longer than a block of a prefix cache: what was cached under older weights must be forgotten.
        prompt = array("i", [7, 3] * 20)
        for version in range(4, 9):
            scale(policy, 1.05)
            report = sync.push(policy, engine, version, VOCAB_SIZE)
            assert engine.version == version and report.max_logprob_difference <= TOLERANCE
            wanted = [GenerationRequest(prompt, 8, seed) for seed in range(4)]
            assert_scored_by(policy, wanted, engine.generate(wanted, SAMPLING))
        engine.load_weights(random_policy(), version=3)

    @pytest.mark.parametrize("left_out", ["model.norm.weight", LOST, "model.embed_tokens.weight"])
    def test_a_weight_that_does_not_come_is_an_error(self, engine, left_out):
        weights = [(name, weight) for name, weight in random_policy().named_weights() if name != left_out]
        with pytest.raises(EngineError, match="weights unset"):
            engine.load_weights(SomeWeights(weights), version=4)
        engine.load_weights(random_policy(), version=3)

    def test_a_weight_of_another_model_is_an_error(self, engine):
        with pytest.raises(EngineError, match="unknown"):
            engine.load_weights(SomeWeights([("unknown.weight", torch.zeros(1))]), version=4)
        assert engine.version != 4
        engine.load_weights(random_policy(), version=3)


class SmallSteps:
    """Promise of an engine that can tell what weights it holds; they go through shared memory."""

    planted = staticmethod(planted_on_the_way)

    @pytest.mark.parametrize("names", [None, [LOST]], ids=["all weights of a step before", "a lost layer"])
    def test_weights_of_one_small_step_before_are_found(self, engine, monkeypatch, names):
        policy, sync = random_policy(), WeightSync(tolerance=1e-3, probe_tokens=40)
        assert sync.push(policy, engine, 4, VOCAB_SIZE).compared_share == 1
        old = OldWeights(policy, names)
        step(policy)
        with self.planted(monkeypatch, old), pytest.raises(EngineError, match="does not hold the"):
            sync.push(policy, engine, 5, VOCAB_SIZE)
        sync.push(random_policy(), engine, 3, VOCAB_SIZE)
