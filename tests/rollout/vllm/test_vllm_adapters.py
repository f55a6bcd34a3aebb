"""A policy's adapters in vLLM: handed over beside weights that come once, and applied to every sample."""

from contextlib import closing
from dataclasses import replace
from functools import partial

import pytest
from tests.builders import VOCAB_SIZE
from tests.rollout.contract import SAMPLING, requests, tokens
from tests.rollout.faults import OldWeights, planted_on_the_way, step

from bapo_lightning.modules.policy.factory import build_policy
from bapo_lightning.modules.policy.options import LoraOptions, ModelOptions
from bapo_lightning.rollout.child.engine import ChildEngine
from bapo_lightning.rollout.engine import Wanted
from bapo_lightning.rollout.vllm.local import VLLMLocalEngine
from bapo_lightning.rollout.vllm.server import VLLMServerEngine
from bapo_lightning.rollout.weight_sync import WeightSync
from bapo_lightning.rollout.weight_transport import SharedMemoryTransport
from bapo_lightning.system.errors import EngineError

PART = ("q_proj", "v_proj", "down_proj")  # of fused layers one part, and one layer that is not fused


def adapted(folder, targets="all-linear", dtype="float32"):
    return build_policy(ModelOptions(folder, dtype=dtype, lora=LoraOptions(4, 8, targets)), 1.0)


class Counting:
    """A policy that counts the tensors that it yields."""

    def __init__(self, policy):
        self.policy, self.names = policy, []

    def __getattr__(self, name):
        return getattr(self.policy, name)

    def named_weights(self, wanted):
        for name, weight in self.policy.named_weights(wanted):
            self.names.append(name)
            yield name, weight


def check_syncs(engine, policy, tolerance=1e-4):
    """Lets an engine follow a policy over some updates, from adapters that add nothing."""
    sync, source = WeightSync(tolerance, probe_tokens=40), Counting(policy)
    for version in range(3):
        source.names.clear()
        report = sync.push(source, engine, version, VOCAB_SIZE)
        assert report.compared_share == 1
        assert report.update_kept == (pytest.approx(1, abs=1e-3) if version else None)
        assert all(".lora_" in name for name in source.names) == (version > 0)
        step(policy, version, rate=0.05)
    return sync, source


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-4), ("bfloat16", 0.1)])
@pytest.mark.parametrize("targets", ["all-linear", PART], ids=["all layers", "some layers"])
def test_the_engine_samples_from_weights_and_adapters(folder, options, dtype, tolerance, targets):
    adapting = replace(options, dtype=dtype, lora_rank=4, lora_targets=targets)
    with closing(VLLMLocalEngine(folder, adapting)) as engine:
        check_syncs(engine, adapted(folder, targets, dtype), tolerance)


def test_weights_come_again_after_a_failed_pass_and_other_adapters_are_found(folder, options, monkeypatch):
    engine, policy = VLLMLocalEngine(folder, replace(options, lora_rank=4)), adapted(folder)
    with closing(engine):
        sync, source = check_syncs(engine, policy)
        old, watched = OldWeights(policy, wanted=Wanted("adapters")), engine._watched
        step(policy)
        monkeypatch.setattr(engine, "_watched", lambda *arguments: old.replace(watched(*arguments)))
        with pytest.raises(EngineError, match="does not hold the trainer's weights in 4 of 11 modules"):
            sync.push(source, engine, 3, VOCAB_SIZE)
        monkeypatch.setattr(engine, "_watched", lambda *arguments: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            engine.load_weights(source, 4)
        monkeypatch.undo()
        source.names.clear()
        sync.push(source, engine, 5, VOCAB_SIZE)
        assert "model.norm.weight" in source.names


def test_a_sleeping_engine_keeps_the_weights_under_its_adapters(folder, options, monkeypatch):
    # What a GPU would do is written down instead: vLLM has no sleep mode on a CPU.
    engine, events = VLLMLocalEngine(folder, replace(options, lora_rank=4)), []
    with closing(engine):
        _, source = check_syncs(engine, adapted(folder))
        monkeypatch.setattr(engine, "_can_sleep", True)
        monkeypatch.setattr(engine._llm, "sleep", lambda level: events.append(level))
        monkeypatch.setattr(engine._llm, "wake_up", lambda tags: events.append(tags))
        engine.sleep()
        source.names.clear()
        engine.load_weights(source, 3)
        assert events == [1, ["weights"], ["kv_cache"]] and all(".lora_" in name for name in source.names)


@pytest.mark.drill
def test_two_worker_processes_hold_their_parts_of_adapters(folder, options, monkeypatch):
    parallel = replace(options, lora_rank=4, tensor_parallel_size=2)
    engine = ChildEngine(folder, partial(VLLMLocalEngine, options=parallel), cpu_threads=1)
    with closing(engine):
        policy = adapted(folder)
        sync, source = check_syncs(engine, policy)
        sync.push(source, engine, 3, VOCAB_SIZE)
        before = engine.generate(requests(10), SAMPLING)
        old = OldWeights(policy, wanted=Wanted("adapters"))
        step(policy)
        with planted_on_the_way(monkeypatch, old), pytest.raises(EngineError, match="mlp, adapters"):
            sync.push(source, engine, 4, VOCAB_SIZE)
        step(policy, rate=-1e-6)
        engine.restart()
        source.names.clear()
        sync.push(source, engine, 3, VOCAB_SIZE)
        assert "model.norm.weight" in source.names
        assert tokens(engine.generate(requests(10), SAMPLING)) == tokens(before)


def test_a_server_applies_adapters_that_are_on_no_disk(folder, options, tmp_path):
    given = replace(options, lora_rank=4), SharedMemoryTransport(part_megabytes=1), str(tmp_path)
    with closing(VLLMServerEngine(folder, *given, cpu_threads=1)) as engine:
        check_syncs(engine, adapted(folder))
