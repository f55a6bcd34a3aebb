"""How far log-probs of vLLM in bfloat16 are from the trainer's, with logits in bfloat16 and in float32, on
SmolLM2-135M-Instruct and this machine's CPU.

    python bench/head_dtype.py [--prompts 64] [--tokens 32]

Both computations round activations to bfloat16 at places of their own, so that a difference remains with
logits in float32. `mean` and `max` are of its absolute value over the sampled tokens, in nats.
"""

from __future__ import annotations

import time

import torch
from adapters import MODEL, PROMPT_TOKENS, answered, random_requests
from measuring import bench_parser

from bapo_lightning.modules.policy.factory import build_policy
from bapo_lightning.modules.policy.options import ModelOptions
from bapo_lightning.rollout.engine import GenerationRequest, SamplingParams
from bapo_lightning.rollout.vllm.local import VLLMLocalEngine
from bapo_lightning.rollout.vllm.options import VLLMOptions
from bapo_lightning.rollout.weight_sync import WeightSync


def measure(head_dtype: str, temperature: float, requests: list[GenerationRequest]) -> None:
    policy = build_policy(ModelOptions(MODEL, dtype="bfloat16"), temperature)
    policy.mix_precision()
    options = VLLMOptions(
        max_model_len=PROMPT_TOKENS + requests[0].max_new_tokens,
        dtype="bfloat16",
        kv_cache_bytes=256 << 20,
        extra={"hf_overrides": {"head_dtype": head_dtype}},
    )
    engine = VLLMLocalEngine(MODEL, options)
    WeightSync(0.5, temperature).push(policy, engine, 0, policy.model.config.vocab_size)
    start = time.perf_counter()
    generations = engine.generate(requests, SamplingParams(temperature, ()))
    seconds = time.perf_counter() - start
    trainers = policy.response_logprobs(answered(requests, generations), 2048)
    differences = torch.tensor(
        [
            abs(ours - theirs)
            for mine, each in zip(trainers, generations, strict=True)
            for ours, theirs in zip(mine, each.segment.logprobs, strict=True)
        ]
    )
    print(
        f"logits in {head_dtype:8} temperature {temperature:.1f}  mean {differences.mean():.4f}  "
        f"max {differences.max():.3f}  {len(differences)} tokens in {seconds:.1f} s",
        flush=True,
    )
    engine.close()


def main() -> None:
    parsed = bench_parser(__doc__, has_json=False, prompts=64, tokens=32).parse_args()
    requests = random_requests(parsed.prompts, parsed.tokens)
    for temperature in (1.0, 0.6):
        for head_dtype in ("model", "float32"):
            measure(head_dtype, temperature, requests)


if __name__ == "__main__":
    main()
