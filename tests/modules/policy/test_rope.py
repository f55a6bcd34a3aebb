"""Rotary embeddings that depend on the length: the log-probs of a text do not depend on its neighbours, and
trainer and engine agree on texts of any length.
"""

import random
from array import array

import pytest
import torch
from tests.builders import rollout
from tests.modules.policy.families import SIZES
from transformers import AutoModelForCausalLM, LlamaConfig, Phi3Config, PhimoeConfig

from bapo_lightning.modules.policy.factory import build_policy
from bapo_lightning.modules.policy.options import ModelOptions
from bapo_lightning.rollout.engine import GenerationRequest, SamplingParams
from bapo_lightning.rollout.hf.engine import HFEngine
from bapo_lightning.rollout.vllm.options import VLLMOptions
from bapo_lightning.rollout.weight_sync import WeightSync
from bapo_lightning.system.errors import DataError

ORIGINAL = 32  # tokens up to which LongRoPE has its short factors; the models have 128 positions
LONGROPE = {
    "rope_type": "longrope", "rope_theta": 1e4,
    "short_factor": [1.0] * 4, "long_factor": [4.0, 3.0, 2.0, 5.0],
    "original_max_position_embeddings": ORIGINAL,
}  # fmt: skip
TOKENS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
CONFIGS = {
    "phi3": lambda: Phi3Config(
        **SIZES, **TOKENS, rope_parameters=dict(LONGROPE), original_max_position_embeddings=ORIGINAL
    ),
    "llama": lambda: LlamaConfig(**SIZES, **TOKENS, rope_parameters=dict(LONGROPE)),
    "phimoe": lambda: PhimoeConfig(
        **SIZES, **TOKENS, num_local_experts=2,
        rope_parameters={**LONGROPE, "short_mscale": 1.1, "long_mscale": 1.4},
    ),
}  # fmt: skip


@pytest.fixture(params=CONFIGS)
def folder(request, tmp_path):
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(CONFIGS[request.param]())
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.mul_(6.0)
    model.save_pretrained(tmp_path)
    return str(tmp_path)


def text(length, seed):
    draw = random.Random(seed)
    tokens = [draw.randrange(3, 24) for _ in range(length)]
    return rollout(tokens[:5], tokens[5:], [0.0] * (length - 5))


@pytest.mark.parametrize("packing", ["none", "padding_free"])
@pytest.mark.parametrize("context", [None, ORIGINAL, 120])
def test_log_probs_do_not_depend_on_the_neighbours_of_a_text(packing, context, folder):
    policy = build_policy(ModelOptions(folder, packing=packing, context_length=context), 1.0)
    short, long = text(20, 0), text(100, 1)
    (alone,) = policy.response_logprobs([short], 1000)
    together = policy.response_logprobs([short, long], 1000)[0]
    assert alone == pytest.approx(together, abs=2e-4)


# transformers' PhiMoE has the short factors at any length, vLLM's has not.
@pytest.mark.parametrize("folder", ["phi3", "llama"], indirect=True)
@pytest.mark.parametrize("length", [20, ORIGINAL, ORIGINAL + 1, 100])
def test_the_factors_are_those_of_the_longest_text(length, folder):
    """Of transformers' own model for a text of that length."""
    policy = build_policy(ModelOptions(folder, context_length=length), 1.0)
    sample = text(length, 0)
    (found,) = policy.response_logprobs([sample], 1000)
    reference = AutoModelForCausalLM.from_pretrained(folder)
    ids = torch.tensor([[*sample.prompt_ids, *sample.response_ids]])
    with torch.no_grad():
        every = reference(ids, use_cache=False).logits[0, 4:-1].log_softmax(-1)
    assert found == pytest.approx(every.gather(-1, ids[0, 5:, None])[:, 0].tolist(), abs=2e-4)
    sent = VLLMOptions(max_prompt_tokens=length).engine_arguments(folder, on_cpu=True)["hf_overrides"]
    wanted = LONGROPE["long_factor" if length > ORIGINAL else "short_factor"]  # at any length, then
    assert [sent["rope_parameters"][name] for name in ("short_factor", "long_factor")] == [wanted] * 2


@pytest.mark.parametrize("context", [None, ORIGINAL, 120])
def test_an_engine_samples_under_the_factors_of_the_trainer(context, folder):
    policy = build_policy(ModelOptions(folder, context_length=context), 1.0)
    engine = HFEngine(folder, device="cpu", context_length=context or 0)
    WeightSync(tolerance=1e-3).push(policy, engine, 1, 24)
    limit = (context or 120) - 12
    prompts = [array("i", range(3, 3 + length)) for length in (5, 12)]
    made = engine.generate(
        [GenerationRequest(prompt, limit, seed) for seed, prompt in enumerate(prompts)],
        SamplingParams(1.0, ()),
    )
    sampled = [
        rollout(prompt, one.segment.token_ids, one.segment.logprobs)
        for prompt, one in zip(prompts, made, strict=True)
    ]
    for one, scores in zip(sampled, policy.response_logprobs(sampled, 1000), strict=True):
        assert list(one.logprobs) == pytest.approx(scores, abs=1e-3)


def test_texts_beyond_the_range_of_a_dynamic_embedding_are_refused(tmp_path):
    dynamic = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}
    AutoModelForCausalLM.from_config(LlamaConfig(**SIZES, rope_parameters=dynamic)).save_pretrained(tmp_path)
    build_policy(ModelOptions(str(tmp_path), context_length=128, packing="padding_free"), 1.0)
    for build in (
        build_policy,
        lambda options, _: HFEngine(options.path, context_length=options.context_length),
    ):
        with pytest.raises(DataError, match="change with the length of texts of more than 128 tokens"):
            build(ModelOptions(str(tmp_path), context_length=129), 1.0)
