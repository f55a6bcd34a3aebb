"""Families that vLLM holds otherwise than Llama: experts, transposed weights, a class of transformers, latent
attention, a recurrent state, parameters that its loader writes itself.
"""

import re
from contextlib import closing
from dataclasses import replace

import pytest
import torch
from bench.family_checks import TOLERANCE, VOCAB, make, policy_of, synced, update
from transformers import Olmo2Model

from bapo_lightning.rollout.vllm import families
from bapo_lightning.rollout.vllm import weights as vllm_weights
from bapo_lightning.rollout.vllm.local import VLLMLocalEngine
from bapo_lightning.rollout.weight_sync import WeightSync
from bapo_lightning.system.errors import EngineError


@pytest.fixture(scope="module")
def started(tmp_path_factory, options):
    """Starts an engine of a family with a policy that was updated."""

    def start(family):
        folder = make(family, tmp_path_factory.mktemp(family) / "made")
        return policy_of(folder), VLLMLocalEngine(str(folder), replace(options, max_num_seqs=8))

    return start


@pytest.mark.parametrize("family", [
    "qwen3_moe", "granitemoe", "gpt2", "olmo2", "gpt_oss", "deepseek_v2", "glm4_moe", "dots1", "lfm2",
])  # fmt: skip
def test_every_sync_of_a_family_is_proven_and_leaves_the_trainer_s_model_alone(started, family):
    policy, engine = started(family)
    with closing(engine):
        synced(policy, engine)
        synced(update(policy), engine)
    update(policy)


def test_latent_attention_in_float32_leaves_the_kernels_of_amx_alone(started, monkeypatch):
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: True)
    policy, engine = started("deepseek_v2")
    with closing(engine):
        synced(policy, engine)


def test_without_new_kernels_experts_are_wrong_and_the_probe_says_so(started, monkeypatch):
    monkeypatch.setattr(vllm_weights, "let_experts_be_packed", lambda model: None)
    policy, engine = started("qwen3_moe")
    with closing(engine), pytest.raises(EngineError, match="does not hold the trainer's weights"):
        WeightSync(tolerance=TOLERANCE).push(policy, engine, 1, VOCAB)


def test_what_a_loader_writes_where_nothing_is_kept_is_missing(started, monkeypatch):
    monkeypatch.setattr(families, "EXPERTS", re.compile("none"))
    policy, engine = started("gpt_oss")
    with closing(engine), pytest.raises(EngineError, match=r"weights unset, first 'model.layers.0.*experts"):
        engine.load_weights(policy, 1)


def test_a_class_that_vllm_would_compile_is_not_changed_while_this_process_trains_it(started):
    policy, engine = started("olmo2")
    engine.options = replace(engine.options, enforce_eager=False)
    init = Olmo2Model.__init__
    with closing(engine), pytest.raises(EngineError, match=r"it would change Olmo2Model.*enforce_eager=true"):
        engine.load_weights(policy, 1)
    assert Olmo2Model.__init__ is init


@pytest.mark.parametrize(("family", "words"), [
    ("mpt", "MptForCausalLM was supported in vLLM until"),
    ("mamba", "no attribute 'selective_scan_fwd'"),  # a kernel that its build for CPUs lacks
    ("minimax_m2", 'assert self.scoring_func == "softmax" (cpu_router.py)'),
])  # fmt: skip
def test_a_family_that_vllm_cannot_run_is_refused_before_it_has_weights_in_one_sentence(
    started, family, words, monkeypatch
):
    policy, engine = started(family)
    monkeypatch.setattr(engine, "_take", lambda source: pytest.fail("weights were loaded"))
    with closing(engine), pytest.raises(EngineError, match="vLLM could not be started") as caught:
        engine.load_weights(policy, 1)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 400
