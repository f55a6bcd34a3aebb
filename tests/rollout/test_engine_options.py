"""Engine classes before an engine is made: where they run, and which options do not go together."""

import os
import subprocess
import sys
from dataclasses import replace
from functools import partial
from typing import get_args

import pytest
from tests.rollout.odd_engines import OddEngine
from transformers import AutoConfig

from bapo_lightning.modules.policy.folder import model_path
from bapo_lightning.rollout.child.engine import ChildEngine
from bapo_lightning.rollout.child.process import inherited
from bapo_lightning.rollout.engine import EVERY, MERGED, RolloutEngine, RunsIn, engine_class
from bapo_lightning.rollout.hf.engine import HFEngine
from bapo_lightning.rollout.vllm.answers import MOST
from bapo_lightning.rollout.vllm.local import VLLMLocalEngine
from bapo_lightning.rollout.vllm.options import VLLMOptions
from bapo_lightning.rollout.vllm.server import VLLMServerEngine
from bapo_lightning.rollout.weight_sync import WeightSync
from bapo_lightning.system.errors import EngineError
from bapo_lightning.system.host import ALLOCATOR_VARIABLES, let_segments_grow

MODEL = model_path("package://bapo_lightning/tiny_worlds/additions/model")


@pytest.mark.parametrize(("named", "runs_in", "shares_gpu", "streams", "most"), [
    (HFEngine, "trainer", False, True, EVERY), (VLLMLocalEngine, "trainer", True, True, MOST),
    (ChildEngine, "child", False, True, 0), (VLLMServerEngine, "server", False, True, MOST),
    (RolloutEngine, "trainer", False, False, 0), (partial(HFEngine), "trainer", False, False, 0),
])  # fmt: skip
def test_a_class_says_where_its_engines_work_and_what_they_can(named, runs_in, shares_gpu, streams, most):
    engine = engine_class(named)
    assert (engine.runs_in, engine.shares_gpu, engine.streams) == (runs_in, shares_gpu, streams)
    assert engine.most_candidates == most and runs_in in get_args(RunsIn)


def test_an_engine_of_the_least_methods_is_one_without_processes_streams_or_digests():
    engine = OddEngine("")
    assert engine.weight_digests(0) == engine.take_counts() == {} and engine.wanted == MERGED
    for method, arguments in ((engine.stream, (None, None)), (engine.restart, ())):
        with pytest.raises(EngineError, match="cannot"):
            method(*arguments)


NODE = {"gpus": ["0", "1"], "num_servers": 2, "urls": ["http://gpu7:8000"]}
PARALLEL = {"tensor_parallel_size": 2, "extra": {"data_parallel_size": 2}}


@pytest.mark.parametrize(("kind", "options", "beginnings"), [
    (ChildEngine, {}, []), (ChildEngine, {"cpu_affinity": [0]}, []),
    (ChildEngine, {"cpu_affinity": [0, 99_999]},
     ["cpu_affinity=[0, 99999]: this machine has no core 99999, its cores are 0 to "]),
    (VLLMServerEngine, {}, []), (VLLMServerEngine, NODE, []),
    (VLLMServerEngine, {"gpus": ["0,1,2,3"], "options": PARALLEL}, []),
    (VLLMServerEngine, {"gpus": ["0", "1"], "num_servers": 1, "urls": ["gpu7:8000"]},
     ["gpus=['0', '1'] names the GPUs of 2 servers, num_servers=1; write one entry for each server",
      "urls: gpu7:8000 is not a URL; write e.g. urls=[http://127.0.0.1:8000]"]),
    (VLLMServerEngine, {"gpus": ["4,5"], "options": PARALLEL},
     ["gpus=['4,5']: 4,5 names 2 for a server that takes 4 (options.tensor_parallel_size); write"]),
    (WeightSync, {"tolerance": 1e-3}, []),
    (WeightSync, {"tolerance": 0.0}, ["tolerance=0.0: no two computations agree to the last bit; write"]),
    (WeightSync, {"tolerance": float("inf")}, ["tolerance=inf proves nothing; write e.g. 0.2"]),
])  # fmt: skip
def test_options_that_cannot_be_met_are_named_with_a_remedy(kind, options, beginnings):
    for text, beginning in zip(kind.problems(options), beginnings, strict=True):
        assert text.startswith(beginning)


@pytest.mark.parametrize(("family", "has_cache"), [("llama", True), ("mamba", False), ("lfm2", False)])
def test_on_a_cpu_what_keeps_a_state_has_no_prefix_cache(family, has_cache, tmp_path):
    layers = {"layer_types": ["conv", "full_attention"]} if family == "lfm2" else {}
    AutoConfig.for_model(family, num_hidden_layers=2, **layers).save_pretrained(tmp_path)
    arguments = VLLMOptions(max_model_len=64).engine_arguments(str(tmp_path), on_cpu=True)
    assert arguments["enable_prefix_caching"] is has_cache
    assert VLLMOptions().engine_arguments(str(tmp_path), on_cpu=False)["enable_prefix_caching"]


def test_on_a_gpu_the_head_of_vllm_computes_in_float32_unless_the_user_says_otherwise():
    def overrides(on_cpu=False, dtype=None, **own):
        options = VLLMOptions(max_model_len=64, dtype=dtype, extra={"hf_overrides": own} if own else {})
        return options.engine_arguments(MODEL, on_cpu).get("hf_overrides")

    assert overrides() == overrides(dtype="float16") == {"head_dtype": "float32"}
    assert overrides(rope_theta=1.0) == {"head_dtype": "float32", "rope_theta": 1.0}
    assert overrides(head_dtype="model") == {"head_dtype": "model"}
    assert overrides(dtype="float32") is overrides(on_cpu=True) is None


@pytest.mark.parametrize(("size", "environment", "found"), [
    (2, {"PYTORCH_ALLOC_CONF": "expandable_segments:True"}, True),
    (2, {"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:64,expandable_segments:True"}, True),
    (2, {"PYTORCH_ALLOC_CONF": "expandable_segments:False"}, None),
    (2, {}, None),
    (1, {"PYTORCH_ALLOC_CONF": "expandable_segments:True"}, None),
])  # fmt: skip
def test_vllm_shares_no_memory_of_segments_that_grow(size, environment, found):
    options = VLLMOptions(max_model_len=64, tensor_parallel_size=size)
    assert options.engine_arguments(MODEL, False, environment).get("disable_custom_all_reduce") is found
    extra = replace(options, extra={"disable_custom_all_reduce": False})
    assert extra.engine_arguments(MODEL, False, environment)["disable_custom_all_reduce"] is False


def test_training_lets_segments_grow_unless_somebody_chose_and_child_processes_do_not(monkeypatch):
    for name in ALLOCATOR_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    let_segments_grow()
    assert os.environ["PYTORCH_ALLOC_CONF"] == "expandable_segments:True"
    assert "PYTORCH_ALLOC_CONF" not in inherited()
    monkeypatch.delenv("PYTORCH_ALLOC_CONF")
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "max_split_size_mb:64")
    let_segments_grow()
    assert "PYTORCH_ALLOC_CONF" not in os.environ
    assert inherited()["PYTORCH_CUDA_ALLOC_CONF"] == "max_split_size_mb:64"


def test_a_command_lets_segments_grow_before_torch_is_there():
    code = "import bapo_lightning.cli.train, os, sys; print('torch' in sys.modules, os.environ[sys.argv[1]])"
    words = [sys.executable, "-c", code, "PYTORCH_ALLOC_CONF"]
    environment = {name: value for name, value in os.environ.items() if name not in ALLOCATOR_VARIABLES}
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "expandable_segments:True"]
