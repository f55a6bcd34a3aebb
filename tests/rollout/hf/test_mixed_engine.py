"""The engine of transformers in mixed precision, and its attention over the cache."""

from array import array

import pytest
import torch
from tests.builders import VOCAB_SIZE, random_policy
from tests.rollout.faults import step
from transformers import Qwen2Config, Qwen2ForCausalLM

from bapo_lightning.modules.policy.factory import build_policy
from bapo_lightning.modules.policy.options import LoraOptions, ModelOptions
from bapo_lightning.rollout.engine import GenerationRequest, SamplingParams
from bapo_lightning.rollout.hf.engine import HFEngine
from bapo_lightning.rollout.hf.reader import CACHED_SDPA
from bapo_lightning.rollout.weight_sync import WeightSync
from bapo_lightning.system import precision
from bapo_lightning.types import Rollout

SAMPLING = SamplingParams(1.0, stop_token_ids=())


def test_blocks_are_held_in_bfloat16_and_embeddings_norms_and_head_in_float32(folder):
    engine = HFEngine(folder, dtype="bf16-mixed", device="cpu")
    dtypes = {name: each.dtype for name, each in engine._model.named_parameters()}
    assert dtypes["model.layers.0.mlp.up_proj.weight"] == torch.bfloat16
    assert dtypes["model.embed_tokens.weight"] == dtypes["model.norm.weight"] == torch.float32


def test_it_agrees_with_a_trainer_in_mixed_precision_and_the_proof_of_a_sync_holds(folder):
    engine, policy = HFEngine(folder, dtype="bf16-mixed", device="cpu"), random_policy()
    policy.mix_precision()
    report = WeightSync(tolerance=0.2).push(policy, engine, 1, VOCAB_SIZE)
    assert 0 < report.mean_logprob_difference < 0.2
    prompts = [array("i", [1, 2, 3]), array("i", [1, 2, 3]), array("i", [4])]
    requests = [GenerationRequest(prompt, 12, seed) for seed, prompt in enumerate(prompts)]
    made = engine.generate(requests, SAMPLING)
    rollouts = [Rollout(ids, (one.segment,), one.finish) for ids, one in zip(prompts, made, strict=True)]
    for rollout, scores in zip(rollouts, policy.response_logprobs(rollouts, 1000), strict=True):
        assert list(rollout.logprobs) == pytest.approx(list(scores), abs=0.3)


@pytest.mark.parametrize("dtype", ["bfloat16", "bf16-mixed"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_in_16_bits_it_notes_what_could_have_been_sampled(folder, dtype, temperature):
    engine = HFEngine(folder, dtype=dtype, device="cpu")
    engine.load_weights(random_policy(), 0)
    sampling = SamplingParams(temperature, (), num_candidates=2)
    made = engine.generate([GenerationRequest(array("i", [1, 2]), 3, 5)], sampling)
    assert made[0].segment.candidates.counts.tolist() == [2 if temperature else 1] * 3


@pytest.mark.parametrize("dtype", ["bfloat16", "bf16-mixed"])
def test_in_16_bits_it_applies_adapters_as_they_are_and_lets_the_old_ones_go(folder, dtype):
    engine = HFEngine(folder, dtype=dtype, device="cpu")
    policy = build_policy(ModelOptions(folder, dtype="bfloat16", lora=LoraOptions(4, 8)), 1.0)
    policy.mix_precision()
    sync = WeightSync(tolerance=0.2)
    for version in range(3):
        report = sync.push(policy, engine, version, VOCAB_SIZE)
        assert report.compared_share == 1 and len(engine._hooks) == 14
        assert report.update_kept == (pytest.approx(1, abs=1e-3) if version else None)
        step(policy, version, rate=0.02)
    assert sync.push(random_policy(), engine, 3, VOCAB_SIZE).update_kept is None
    assert engine._hooks == []


@pytest.mark.parametrize("key_heads", [1, 2, 4])
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("whole", [False, True])
def test_attention_over_the_cache_equals_transformers_own(key_heads, padded, whole, monkeypatch):
    monkeypatch.setattr(precision, "needs_whole_heads", lambda states: whole)
    sizes = {"vocab_size": 16, "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2}
    config = Qwen2Config(**sizes, num_attention_heads=4, num_key_value_heads=key_heads)
    torch.manual_seed(0)
    model = Qwen2ForCausalLM(config).eval()
    ids, mask = torch.arange(12).view(2, 6), torch.ones(2, 6, dtype=torch.long)
    if padded:
        mask[0, :2] = 0
    found = []
    for attention in ("sdpa", CACHED_SDPA):
        model.set_attn_implementation(attention)
        with torch.no_grad():
            begun = model(ids[:, :5], attention_mask=mask[:, :5], use_cache=True)
            ended = model(ids[:, 5:], attention_mask=mask, past_key_values=begun.past_key_values)
        found.append(torch.cat([begun.logits[:, -1:], ended.logits], 1))
    assert torch.allclose(*found, atol=1e-5)
