"""vLLM inside this process, on a small model on the CPU."""

import gc
from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch
from tests.builders import VOCAB_SIZE, model_config, random_policy
from tests.rollout.contract import SAMPLING, SmallSteps, requests
from tests.rollout.faults import step
from tests.rollout.stream_contract import Stream, StreamContract, by_number
from tests.rollout.vllm.vllm_contract import VLLMContract
from transformers import AutoModelForCausalLM, Qwen2Config, Qwen3Config

from bapo_lightning.modules.policy.policy import Policy
from bapo_lightning.rollout.engine import UNSYNCED_VERSION, StreamCall
from bapo_lightning.rollout.vllm import weights as vllm_weights
from bapo_lightning.rollout.vllm.local import VLLMLocalEngine
from bapo_lightning.rollout.vllm.streamed import StreamedRequests
from bapo_lightning.rollout.weight_sync import WeightSync
from bapo_lightning.system.errors import EngineError


@pytest.fixture(scope="module")
def engine(folder, options):
    made = VLLMLocalEngine(folder, options)
    made.load_weights(random_policy(), version=3)
    yield made
    made.close()


class TestVLLMLocalEngine(VLLMContract, StreamContract, SmallSteps):
    @contextmanager
    def planted(self, monkeypatch, old):
        watched = VLLMLocalEngine._watched
        with monkeypatch.context() as patch:
            patch.setattr(VLLMLocalEngine, "_watched", lambda *given: old.replace(watched(*given)))
            yield


def test_versions_of_a_streams_tokens_are_those_that_vllm_notes_itself(engine, monkeypatch):
    spans = {}
    kept = StreamedRequests.kept

    def noted(self, outputs, version):
        for output in outputs:
            if output.finished and output.request_id.startswith("stream/"):
                found = output.outputs[0].weight_versions
                spans[self._running[output.request_id]] = [(int(s.version), s.start, s.end) for s in found]
        return kept(self, outputs, version)

    monkeypatch.setattr(StreamedRequests, "kept", noted)
    stream = Stream(engine)
    wanted = by_number(requests(12, limit=20))
    for version in range(4, 8):
        engine.load_weights(random_policy(), version)
        engine._llm.llm_engine.set_weight_version(str(version))
        stream.call(dict(list(wanted.items())[3 * (version - 4) : 3 * (version - 3)]), steps=3)
    stream.to_the_end()
    engine.load_weights(random_policy(), version=3)
    assert max(map(len, spans.values())) > 1
    for number, versions in stream.versions.items():
        assert list(versions) == [v for v, start, end in spans[number] for _ in range(start, end)]


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
    policy = random_policy(temperature=0.6)
    with pytest.raises(EngineError, match="samples from another distribution than it reports"):
        WeightSync(tolerance=1e-3, temperature=1.0).push(policy, engine, 3, VOCAB_SIZE)
    WeightSync(tolerance=1e-3, temperature=0.6).push(policy, engine, 3, VOCAB_SIZE)


def test_a_packed_head_that_kept_one_small_step_before_is_found(engine, monkeypatch):
    policy, sync = random_policy(), WeightSync(tolerance=1e-3, probe_tokens=40)
    sync.push(policy, engine, 4, VOCAB_SIZE)
    step(policy)
    monkeypatch.setattr(vllm_weights, "repack_tied", lambda model: None)
    with pytest.raises(EngineError, match="does not hold the trainer's weights in 1 of 7 modules"):
        sync.push(policy, engine, 5, VOCAB_SIZE)
    monkeypatch.undo()
    sync.push(random_policy(), engine, 3, VOCAB_SIZE)


def test_factors_for_an_engine_without_room_for_adapters_are_an_error(engine):
    factors = {"model.layers.0.mlp.up_proj.lora_A.weight": torch.zeros(4, 64)}
    with pytest.raises(EngineError, match="left 1 weights unset, first"):
        engine._call_workers("reload_all", factors.items(), False)


def test_a_start_that_compiles_has_more_time_than_a_step(tmp_path, options, monkeypatch):
    armed = []
    monkeypatch.setattr("faulthandler.dump_traceback_later", lambda seconds, **_: armed.append(seconds))
    made = VLLMLocalEngine(str(tmp_path), options, deadline_seconds=5, start_seconds=70)
    monkeypatch.setattr(VLLMLocalEngine, "_start", lambda self: None)
    with pytest.raises(AttributeError):  # nothing was started
        made.load_weights(random_policy(), version=1)
    assert armed == [70, 5]


def test_the_garbage_collector_is_not_frozen(engine):
    assert engine.version == 3 and gc.get_freeze_count() == 0


@pytest.mark.parametrize(("changes", "words"), [
    ({"max_model_len": 10_000}, "max_model_len"),  # beyond the model's own
    ({"kv_cache_bytes": 1024}, r"Try increasing kv_cache_bytes in the options of rollout\.engine"),
])  # fmt: skip
def test_sizes_that_vllm_cannot_have_are_named_by_their_keys(folder, options, changes, words):
    engine = VLLMLocalEngine(folder, replace(options, **changes))
    with pytest.raises(EngineError, match=words):
        engine.load_weights(random_policy(), 0)


def in_vllm(engine):
    return engine._llm.llm_engine.get_num_unfinished_requests()


@pytest.mark.parametrize("call", ["generate", "stream"])
@pytest.mark.parametrize("fault", ["parameters", "step"])
def test_a_failed_call_leaves_no_request_in_vllm(engine, call, fault, monkeypatch):
    stream, wanted = Stream(engine), requests(9, limit=40)
    stream.call(by_number(wanted[:2]), steps=3)
    sampling, error, words = replace(SAMPLING, temperature=3.0), EngineError, "refused a request: temperature"
    if fault == "step":
        monkeypatch.setattr(engine, "_step", lambda: 1 / 0)
        sampling, error, words = SAMPLING, ZeroDivisionError, "division by zero"
    with pytest.raises(error, match=words):
        if call == "generate":
            engine.generate(wanted, sampling)
        else:
            engine.stream(StreamCall(dict(enumerate(wanted[2:], 2)), (), 3), sampling)
    monkeypatch.undo()
    assert in_vllm(engine) == 2, "those of the calls before"
    stream.to_the_end()
    assert in_vllm(engine) == 0 and set(stream.tokens) == {0, 1}
    engine.load_weights(random_policy(), version=3)


def test_generating_without_weights_is_refused(tmp_path, options):
    with pytest.raises(EngineError, match="before it was given weights"):
        VLLMLocalEngine(str(tmp_path), options).generate(requests(1), SAMPLING)


def test_on_a_gpu_it_leaves_the_device_and_comes_back_with_the_next_weights(engine, monkeypatch):
    # What a GPU would do is written down instead: vLLM has no sleep mode on a CPU.
    events = []
    monkeypatch.setattr(engine, "_can_sleep", True)
    monkeypatch.setattr(engine._llm, "sleep", lambda level: events.append(f"sleep {level}"))
    monkeypatch.setattr(engine._llm, "wake_up", lambda tags: events.append(f"wake {tags}"))
    repack = vllm_weights.repack_tied
    monkeypatch.setattr(vllm_weights, "repack_tied", lambda m: (events.append("reload"), repack(m)))
    engine.sleep()
    engine.sleep()
    assert engine.version == UNSYNCED_VERSION
    with pytest.raises(EngineError, match="before it was given weights"):
        engine.generate(requests(1), SAMPLING)
    WeightSync(tolerance=1e-3).push(random_policy(), engine, 3, VOCAB_SIZE)
    engine.load_weights(random_policy(), 3)
    assert events == ["sleep 2", "wake ['weights']", "reload", "wake ['kv_cache']", "reload"]


@pytest.mark.parametrize(("config", "options_of_it"), [
    (Qwen2Config, {"tie_word_embeddings": True}),  # biases on q, k, v, which are fused
    (Qwen3Config, {"tie_word_embeddings": False, "head_dim": 32}),  # norms on q and k; a head of its own
], ids=["Qwen2, tied", "Qwen3, untied"])  # fmt: skip
def test_other_architectures_take_weights_under_their_own_names(tmp_path, options, config, options_of_it):
    made = config(**(model_config().to_dict() | {"model_type": config.model_type} | options_of_it))
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(made).eval()
    model.save_pretrained(tmp_path)
    engine, policy = VLLMLocalEngine(str(tmp_path), options), Policy(model, 1.0)
    for version in range(3):
        with torch.no_grad():
            for parameter in policy.parameters():
                parameter.add_(0.3 * torch.randn_like(parameter))
        WeightSync(tolerance=1e-4, probe_tokens=40).push(policy, engine, version, VOCAB_SIZE)
    engine.close()
