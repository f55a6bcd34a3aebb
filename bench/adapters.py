"""What of a small update of adapters reaches vLLM, and what a sync and its digests cost, on
SmolLM2-135M-Instruct in bfloat16 and this machine's CPU.

    python bench/adapters.py [--updates 10] [--prompts 256]

The weights are numbers in bfloat16, adapters have rank 16 and alpha 32. An update moves every factor by 2e-5
along the sign of its gradient at the first prompts (Adam's first steps).

`kept`: projection of the update that the engine was sent on the one that was trained. `seen`: the same of
what samples show, which is the slope of the engine's change of log-probs on the trainer's, over those first
tokens that are the same before and after the updates, with its standard error.
"""

from __future__ import annotations

import argparse
import statistics
import time
from array import array
from typing import Any

import torch
from transformers import AutoTokenizer

from bapo_lightning.modules.policy.factory import build_policy
from bapo_lightning.modules.policy.lora import WeightPass
from bapo_lightning.modules.policy.options import LoraOptions, ModelOptions
from bapo_lightning.modules.policy.policy import Policy
from bapo_lightning.rollout.engine import GenerationRequest, SamplingParams, Wanted
from bapo_lightning.rollout.vllm.local import VLLMLocalEngine
from bapo_lightning.rollout.vllm.options import VLLMOptions
from bapo_lightning.rollout.weight_sync import WeightSync
from bapo_lightning.types import FinishReason, Rollout

MODEL = "models/smollm2-135m-instruct"
RATE = 2e-5
Token = tuple[int, float, float]  # with the engine's log-prob and the trainer's


def prompts(count: int) -> list[array[int]]:
    """Beginnings of sentences about numbers."""
    tokenizer: Any = AutoTokenizer.from_pretrained(MODEL)
    texts = [f"Question {i}: what is {i * 37 % 101} times {i * 53 % 97}? The answer" for i in range(count)]
    return [array("i", tokenizer(text)["input_ids"]) for text in texts]


def update(policy: Policy, rollouts: list[Rollout]) -> None:
    """One step that makes the responses likelier."""
    from bapo_lightning.data.batches.model_input import model_input

    policy.zero_grad()
    policy(model_input(rollouts, torch.device("cpu"), policy.layout))[0].mean().backward()
    with torch.no_grad():
        for parameter in policy.trained_parameters():
            assert parameter.grad is not None
            parameter.add_(RATE * parameter.grad.sign())


def first_tokens(engine: VLLMLocalEngine, policy: Policy, asked: list[array[int]]) -> list[Token]:
    """The token that the engine samples for each prompt."""
    requests = [GenerationRequest(prompt, 1, seed) for seed, prompt in enumerate(asked)]
    made = engine.generate(requests, SamplingParams(1.0, ()))
    rollouts = [
        Rollout(prompt, (each.segment,), FinishReason.LENGTH)
        for prompt, each in zip(asked, made, strict=True)
    ]
    scored = policy.response_logprobs(rollouts, 8192)
    return [
        (each.segment.token_ids[0], each.segment.logprobs[0], own[0])
        for each, own in zip(made, scored, strict=True)
    ]


def slope(before: list[Token], after: list[Token]) -> str:
    """Slope of the engine's change on the trainer's, over tokens that were sampled both times."""
    pairs = [
        (new[1] - old[1], new[2] - old[2]) for old, new in zip(before, after, strict=True) if old[0] == new[0]
    ]
    square = sum(own**2 for _, own in pairs)
    found = sum(engines * own for engines, own in pairs) / square
    residual = statistics.fmean((engines - found * own) ** 2 for engines, own in pairs)
    return f"{found:5.2f} +- {(residual / square) ** 0.5:.2f}"


def nearest_kept(policy: Policy) -> float:
    """Projection of what rounding to the nearest number keeps of the update."""
    exact = dict(policy.named_weights(Wanted(dtype="float32")))
    kept = whole = 0.0
    for name, weight in WeightPass(policy.model, Wanted("split")):
        if name in exact:
            change = exact[name] - weight.float()
            kept += float(((exact[name].bfloat16().float() - weight.float()) * change).sum())
            whole += float((change * change).sum())
    return kept / whole


def measure(form: str, asked: list[array[int]], updates: int) -> None:
    """Prints one row."""
    torch.manual_seed(0)
    policy = build_policy(ModelOptions(MODEL, dtype="bfloat16", lora=LoraOptions(16, 32)), 1.0)
    policy.mix_precision()
    rank = 16 if form == "adapters" else None
    options = VLLMOptions(max_model_len=64, dtype="bfloat16", kv_cache_bytes=256 << 20, lora_rank=rank)
    engine, sync = VLLMLocalEngine(MODEL, options), WeightSync(0.5)
    vocab = policy.model.config.vocab_size
    sync.push(policy, engine, 0, vocab)
    before = first_tokens(engine, policy, asked)
    made = engine.generate(
        [GenerationRequest(prompt, 8, seed) for seed, prompt in enumerate(asked[:16])],
        SamplingParams(1.0, ()),
    )
    rollouts = [
        Rollout(prompt, (each.segment,), FinishReason.LENGTH)
        for prompt, each in zip(asked, made, strict=False)
    ]
    for _ in range(updates):
        update(policy, rollouts)
    seconds, digests = [], []
    for version in range(1, 6):
        report = sync.push(policy, engine, version, vocab)
        seconds.append(report.transfer_seconds)
        start = time.perf_counter()
        engine.weight_digests(version)
        digests.append(time.perf_counter() - start)
    seen = slope(before, first_tokens(engine, policy, asked))
    sync_ms, digests_ms = (statistics.median(times) * 1000 for times in (seconds, digests))
    print(
        f"{form:10} kept {report.update_kept:6.3f}  seen {seen}  sync {sync_ms:5.0f} ms  "
        f"digests {digests_ms:4.0f} ms",
        flush=True,
    )
    if form == "merged":
        print(f"           rounded to the nearest number it would be kept {nearest_kept(policy):.3f}")
    engine.close()


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--updates", type=int, default=10)
    parser.add_argument("--prompts", type=int, default=256)
    parsed = parser.parse_args()
    asked = prompts(parsed.prompts)
    for form in ("merged", "adapters"):
        measure(form, asked, parsed.updates)


if __name__ == "__main__":
    main()
