"""Families that vLLM holds otherwise than Llama: experts, transposed weights, a class of transformers."""

from contextlib import closing
from dataclasses import replace

import pytest
from bench.family_checks import TOLERANCE, VOCAB, make, policy_of, synced, update
from transformers import Olmo2Model

from bapo_lightning.errors import EngineError
from bapo_lightning.rollout.vllm import weights as vllm_weights
from bapo_lightning.rollout.vllm.local import VLLMLocalEngine
from bapo_lightning.rollout.weight_sync import WeightSync


@pytest.fixture(scope="module")
def started(tmp_path_factory, options):
    """Starts an engine of a family with a policy that was updated."""

    def start(family):
        folder = make(family, tmp_path_factory.mktemp(family) / "made")
        return policy_of(folder), VLLMLocalEngine(str(folder), replace(options, max_num_seqs=8))

    return start


@pytest.mark.parametrize("family", ["qwen3_moe", "granitemoe", "gpt2", "olmo2"])
def test_every_sync_of_a_family_is_proven_and_leaves_the_trainer_s_model_alone(started, family):
    policy, engine = started(family)
    with closing(engine):
        synced(policy, engine)
        synced(update(policy), engine)
    update(policy)


def test_without_new_kernels_experts_are_wrong_and_the_probe_says_so(started, monkeypatch):
    monkeypatch.setattr(vllm_weights, "let_experts_be_packed", lambda model: None)
    policy, engine = started("qwen3_moe")
    with closing(engine), pytest.raises(EngineError, match="does not hold the trainer's weights"):
        WeightSync(tolerance=TOLERANCE).push(policy, engine, 1, VOCAB)


def test_a_class_that_vllm_would_compile_is_not_changed_while_this_process_trains_it(started):
    policy, engine = started("olmo2")
    engine.options = replace(engine.options, enforce_eager=False)
    init = Olmo2Model.__init__
    with closing(engine), pytest.raises(EngineError, match=r"it would change Olmo2Model.*enforce_eager=true"):
        engine.load_weights(policy, 1)
    assert Olmo2Model.__init__ is init


def test_a_family_that_vllm_lacks_is_refused_in_one_sentence(started):
    policy, engine = started("mpt")
    with closing(engine), pytest.raises(EngineError) as caught:
        engine.load_weights(policy, 1)
    assert "MptForCausalLM was supported in vLLM until" in str(caught.value)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 400
