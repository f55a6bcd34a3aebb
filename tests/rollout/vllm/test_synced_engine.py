"""The check of vLLM's weights in `make gpu-check`, and the faults that it is for."""

import pytest
from gpu import speed, vllm
from gpu.checks import Machine
from gpu.models import SHAPES, random_policy, with_layers

from bapo_lightning.rollout.vllm.local import VLLMLocalEngine
from bapo_lightning.rollout.weight_sync import WeightSync


@pytest.fixture(autouse=True)
def few_syncs(monkeypatch):
    monkeypatch.setattr(vllm, "SYNCS", 2)


def test_an_engine_that_takes_all_weights_passes():
    found = list(vllm.local_engine(Machine("cpu")))
    assert [each.verdict for each in found] == ["ok"] * 5
    assert all(each.value < 1e-3 * each.limit for each in found[0:4:2])


def test_its_tokens_a_second_are_measured():
    (found,) = speed.vllm_generation(Machine("cpu"))
    assert found.verdict == "measured" and found.value > 0


def test_weights_of_the_sync_before_and_a_lost_one_are_found(monkeypatch):
    load, before = VLLMLocalEngine.load_weights, random_policy(with_layers(SHAPES["SmolLM2-135M"], 2), "cpu")

    def late(engine, source, version):
        if version > vllm.SYNCS:  # the one that lost a tensor
            load(engine, source, version)
        else:
            load(engine, before, version)
            before.load_state_dict(source.source.state_dict())

    monkeypatch.setattr(VLLMLocalEngine, "load_weights", late)
    # Each of the two is found without what finds it during a run.
    monkeypatch.setattr(WeightSync, "_check_digests", lambda sync, engine, version: 1.0)
    monkeypatch.setattr("bapo_lightning.rollout.vllm.weights.check_complete", lambda missing: None)
    found = list(vllm.local_engine(Machine("cpu")))
    assert [each.verdict for each in found] == ["FAILED", "ok", "FAILED", "ok", "FAILED"]
