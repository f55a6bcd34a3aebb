"""The in-process transformers engine keeps the promises of `RolloutEngine`; vLLM's engines: tests/vllm."""

from array import array
from itertools import product

import numpy as np
import pytest
from tests.builders import random_policy
from tests.rollout.contract import SAMPLING, EngineContract, SomeWeights, requests, tokens
from tests.rollout.stream_contract import Stream, StreamContract, by_number

from bapo_lightning.rollout.engine import GenerationRequest, SamplingParams, request_seed, uniforms
from bapo_lightning.rollout.hf.engine import MOST_BESIDE, HFEngine, indexed_device
from bapo_lightning.system.errors import EngineError
from bapo_lightning.system.phases import phase


@pytest.fixture(scope="module")
def engine(folder):
    made = HFEngine(folder, max_rows=7)
    made.load_weights(random_policy(), version=3)
    yield made
    made.close()


class TestHFEngine(EngineContract, StreamContract):
    """Everything is inherited."""


def test_a_stream_continues_alongside_few_requests_and_not_alongside_many(engine):
    endless = SamplingParams(1.0, ())
    stream = Stream(engine, endless)
    stream.call(by_number(requests(3, limit=30)), steps=2)
    for count, expected in ((4, 1 + 5), (MOST_BESIDE + 1, 1)):
        engine.generate(requests(count, limit=5), endless)
        made = stream.call(steps=1)
        assert [len(each.segments[0].token_ids) for each in made.values()] == [expected] * 3
    stream.call(given_up=range(3))


def test_every_sample_is_counted_once(engine):
    with phase("sampling", 40) as sampling:
        engine.generate(requests(40), SAMPLING)
    assert sampling.done == 40


def test_the_engine_of_a_rank_names_its_gpu_by_number_for_threads_with_another_current_one(monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.current_device", lambda: 3)
    names = ("auto", "cuda", "cuda:1", "cpu")
    assert [str(indexed_device(name)) for name in names] == ["cuda:3", "cuda:3", "cuda:1", "cpu"]


def test_a_weight_of_another_shape_is_an_error(engine):
    name, weight = next(random_policy().named_weights())
    with pytest.raises(EngineError, match="has shape"):
        engine.load_weights(SomeWeights([(name, weight[:, :5])]), version=4)


@pytest.fixture
def calls(engine, monkeypatch):
    """Shape of the token ids and attention mask of each call of the model."""
    made, model = [], engine._model.base_model
    forward = model.forward

    def noted(ids, **named):
        made.append((tuple(ids.shape), named["attention_mask"]))
        return forward(ids, **named)

    monkeypatch.setattr(model, "forward", noted)
    return made


def asked(prompts, limit):
    return [GenerationRequest(array("i", prompt), limit, seed) for seed, prompt in enumerate(prompts)]


def test_a_prompt_that_many_rows_share_passes_through_the_model_once(engine, calls):
    wanted = asked([[3, 5, 2, 8]] * 3 + [[6, 2, 3, 4]] * 2, 3)
    shared = engine.generate(wanted, SAMPLING)
    assert calls == [((2, 4), None), ((5, 1), None), ((5, 1), None)]
    assert tokens(shared) == [tokens(engine.generate([one], SAMPLING))[0] for one in wanted]


def test_prompts_of_different_lengths_get_a_mask(engine, calls):
    engine.generate(asked([[3, 5], [4]], 2), SAMPLING)
    assert [mask.tolist() for _, mask in calls] == [[[1, 1], [0, 1]], [[1, 1, 1], [0, 1, 1]]]


def test_an_engine_without_weights_refuses_to_generate(folder):
    with pytest.raises(EngineError, match="before it was given weights"):
        HFEngine(folder).generate(requests(1), SAMPLING)


def test_the_draws_are_the_published_splitmix64_stream():
    # Reference values of the generator's author for seed 1234567.
    stream = [6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431]
    got = [float(uniforms(np.array([1234567], dtype=np.uint64), position)[0]) for position in range(4)]
    assert got == [(value >> 11) * 2.0**-53 for value in stream]


def test_seeds_differ_in_everything_they_are_made_of_and_fit_into_63_bits():
    made_of = list(product((0, 1), (0, 7), ("a", "b"), range(50)))
    seeds = {request_seed(*parts) for parts in made_of}
    assert len(seeds) == len(made_of) and all(0 <= seed < 2**63 for seed in seeds)
