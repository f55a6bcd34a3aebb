"""What of a small update of adapters reaches vLLM, and what a sync and its digests cost, on
SmolLM2-135M-Instruct in bfloat16 and this machine's CPU.

    python bench/adapters.py [--updates 10] [--prompts 128]

The weights are numbers in bfloat16, adapters have rank 16 and alpha 32. The updates move every factor by 2e-5
each along the sign of its gradient (Adam's first steps), which makes the tokens likelier that were sampled
after random prompts.

`kept`: projection of the update that the engine was sent on the one that was trained. `gain`: by how much the
tokens became likelier, in nats, for the trainer and for the engine, with its standard error: an engine in
bfloat16 rounds activations anew whenever weights change, so that single log-probs move by more. Forms: merged
and rounded to the nearest number, merged and rounded at random, adapters.
"""

from __future__ import annotations

import random
import statistics
import time
from array import array
from contextlib import nullcontext
from typing import Any
from unittest.mock import patch
from zlib import crc32

import torch
from measuring import bench_parser

from bapo_lightning.data.batches.model_input import model_input
from bapo_lightning.modules.policy.factory import build_policy
from bapo_lightning.modules.policy.lora import WeightPass
from bapo_lightning.modules.policy.options import LoraOptions, ModelOptions
from bapo_lightning.modules.policy.policy import Policy
from bapo_lightning.rollout.engine import Generation, GenerationRequest, SamplingParams
from bapo_lightning.rollout.vllm.local import VLLMLocalEngine
from bapo_lightning.rollout.vllm.options import VLLMOptions
from bapo_lightning.rollout.weight_sync import WeightSync
from bapo_lightning.types import Rollout

MODEL = "models/smollm2-135m-instruct"
RATE = 2e-5
PROMPT_TOKENS = 12


def merged_at_random(
    self: WeightPass, name: str, weight: torch.Tensor, up: torch.Tensor, down: torch.Tensor
) -> torch.Tensor:
    """Merged weights, rounded up or down with the probabilities that make the mean right."""
    whole, generator = weight + up @ down, torch.Generator().manual_seed(crc32(name.encode()))
    drawn = torch.randint(1 << 16, whole.shape, generator=generator, dtype=torch.int32)
    merged = ((whole.view(torch.int32) + drawn) & -(1 << 16)).view(torch.float32).to(torch.bfloat16)
    self._kept += float(((merged.float() - weight.float()) * (up @ down)).sum())
    self._whole += float(((up @ down) ** 2).sum())
    return merged


def update(policy: Policy, rollouts: list[Rollout], rate: float) -> None:
    policy.zero_grad()
    policy(model_input(rollouts, torch.device("cpu"), policy.layout))[0].mean().backward()
    with torch.no_grad():
        for parameter in policy.trained_parameters():
            assert parameter.grad is not None
            parameter.add_(rate * parameter.grad.sign())


def paired(
    requests: list[GenerationRequest], before: list[Generation], after: list[Generation]
) -> list[tuple[Rollout, float]]:
    """Samples that are the same before and after, and the engine's change of their log-prob."""
    return [
        (
            Rollout(request.token_ids, (new.segment,), new.finish),
            new.segment.logprobs[0] - old.segment.logprobs[0],
        )
        for request, old, new in zip(requests, before, after, strict=True)
        if old.segment.token_ids == new.segment.token_ids
    ]


def random_requests(count: int, max_new_tokens: int) -> list[GenerationRequest]:
    drawn = random.Random(0)
    return [
        GenerationRequest(
            array("i", (drawn.randrange(1000, 49_000) for _ in range(PROMPT_TOKENS))), max_new_tokens, seed
        )
        for seed in range(count)
    ]


def answered(requests: list[GenerationRequest], generations: list[Generation]) -> list[Rollout]:
    return [
        Rollout(request.token_ids, (each.segment,), each.finish)
        for request, each in zip(requests, generations, strict=True)
    ]


def measure(form: str, requests: list[GenerationRequest], updates: int) -> None:
    torch.manual_seed(0)
    policy = build_policy(ModelOptions(MODEL, dtype="bfloat16", lora=LoraOptions(16, 32)), 1.0)
    policy.mix_precision()
    rank = 16 if form == "adapters" else None
    options = VLLMOptions(max_model_len=64, dtype="bfloat16", kv_cache_bytes=256 << 20, lora_rank=rank)
    engine, sync = VLLMLocalEngine(MODEL, options), WeightSync(0.5)
    vocab, sampling = policy.model.config.vocab_size, SamplingParams(1.0, ())
    sync.push(policy, engine, 0, vocab)
    before = engine.generate(requests, sampling)
    rollouts = answered(requests, before)
    old_logp = policy.response_logprobs(rollouts, 2048)
    update(policy, rollouts, RATE * updates)
    by_trainer = [
        new[0] - old[0] for old, new in zip(old_logp, policy.response_logprobs(rollouts, 2048), strict=True)
    ]
    seconds, digests = [], []
    for version in range(1, 6):
        report = sync.push(policy, engine, version, vocab)
        seconds.append(report.transfer_seconds)
        start = time.perf_counter()
        engine.weight_digests(version)
        digests.append(time.perf_counter() - start)
    gains = [gain for _, gain in paired(requests, before, engine.generate(requests, sampling))]
    error = statistics.stdev(gains) / len(gains) ** 0.5
    sync_ms, digests_ms = (statistics.median(times) * 1000 for times in (seconds, digests))
    ours, engines = statistics.fmean(by_trainer), statistics.fmean(gains)
    print(
        f"{form:8}  kept {report.update_kept:5.3f}  gain {ours:.4f} (trainer), {engines:7.4f} +- {error:.4f} "
        f"(engine, {len(gains)} tokens)  sync {sync_ms:5.0f} ms  digests {digests_ms:4.0f} ms",
        flush=True,
    )
    engine.close()


def main() -> None:
    parsed = bench_parser(__doc__, has_json=False, updates=10, prompts=128).parse_args()
    requests = random_requests(parsed.prompts, max_new_tokens=1)
    at_random: Any = patch.object(WeightPass, "_merged", merged_at_random)
    for form in ("nearest", "random", "adapters"):
        with at_random if form == "random" else nullcontext():
            measure(form, requests, parsed.updates)


if __name__ == "__main__":
    main()
