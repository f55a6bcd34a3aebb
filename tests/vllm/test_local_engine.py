"""vLLM inside this process, on a small model on the CPU."""

import gc
from array import array

import pytest
from tests.builders import VOCAB_SIZE, random_model, random_policy
from tests.rollout.contract import SAMPLING, EngineContract, requests

from bapo_lightning.errors import EngineError
from bapo_lightning.rollout import vllm_weights
from bapo_lightning.rollout.engine import GenerationRequest, SamplingParams
from bapo_lightning.rollout.vllm_local import VLLMLocalEngine
from bapo_lightning.rollout.vllm_options import VLLMOptions
from bapo_lightning.rollout.weight_sync import WeightSync

OPTIONS = VLLMOptions(max_model_len=64, dtype="float32", max_num_seqs=64, kv_cache_bytes=1 << 26)


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    random_model().save_pretrained(folder)
    made = VLLMLocalEngine(str(folder), OPTIONS)
    made.load_weights(random_policy(), version=3)
    yield made
    made.close()


class TestVLLMLocalEngine(EngineContract):
    """Everything is inherited."""


def test_without_the_repacking_of_tied_heads_the_probe_fails(engine, monkeypatch):
    monkeypatch.setattr(vllm_weights, "repack_tied", lambda model: None)
    policy = random_policy(seed=1)
    with pytest.raises(EngineError, match="does not hold the trainer's weights"):
        WeightSync(tolerance=1e-3).push(policy, engine, 4, VOCAB_SIZE)
    monkeypatch.undo()
    WeightSync(tolerance=1e-3).push(random_policy(), engine, 3, VOCAB_SIZE)


def test_without_a_reset_of_the_prefix_cache_the_probe_fails(engine, monkeypatch):
    sync = WeightSync(tolerance=1e-3, probe_tokens=40)
    sync.push(random_policy(), engine, 3, VOCAB_SIZE)
    monkeypatch.setattr(engine._llm, "reset_prefix_cache", lambda: True)
    with pytest.raises(EngineError, match="does not hold the trainer's weights"):
        sync.push(random_policy(seed=1), engine, 4, VOCAB_SIZE)
    monkeypatch.undo()
    sync.push(random_policy(), engine, 3, VOCAB_SIZE)


def test_a_trainer_of_another_temperature_is_found_out(engine):
    with pytest.raises(EngineError, match="samples from another distribution than it says"):
        WeightSync(tolerance=1e-3, temperature=1.0).push(random_policy(temperature=0.6), engine, 3, VOCAB_SIZE)
    WeightSync(tolerance=1e-3, temperature=0.6).push(random_policy(temperature=0.6), engine, 3, VOCAB_SIZE)


def test_the_garbage_collector_is_not_frozen(engine):
    assert engine.version == 3 and gc.get_freeze_count() == 0


def test_a_model_length_beyond_the_models_own_is_an_error_that_names_it(tmp_path):
    random_model().save_pretrained(tmp_path)
    engine = VLLMLocalEngine(str(tmp_path), VLLMOptions(max_model_len=10_000, dtype="float32", kv_cache_bytes=1 << 26))
    with pytest.raises(EngineError, match="max_model_len"):
        engine.load_weights(random_policy(), 0)


def test_a_response_that_vllm_would_cut_short_is_an_error_before_anything_is_sampled(engine):
    with pytest.raises(EngineError, match="request 3 has 60 prompt tokens and asks for 5 more; vLLM was started for 64 in all"):
        engine.generate([*requests(3), GenerationRequest(array("i", [1] * 60), 5, 0)], SAMPLING)
    (longest,) = engine.generate([GenerationRequest(array("i", [1] * 60), 4, 0)], SamplingParams(1.0, ()))
    assert len(longest.segment.token_ids) == 4


def test_generating_without_weights_is_refused(tmp_path):
    with pytest.raises(EngineError, match="before it was given weights"):
        VLLMLocalEngine(str(tmp_path), OPTIONS).generate(requests(1), SAMPLING)
