"""Generation by one vLLM server over HTTP, request by request, and the watch over its progress."""

from __future__ import annotations

import asyncio
from typing import Any

import aiohttp

from bapo_lightning.errors import EngineError
from bapo_lightning.rollout.engine import EngineDied, Generation, GenerationRequest, SamplingParams
from bapo_lightning.rollout.vllm.http import error_message
from bapo_lightning.rollout.vllm.options import generation_of

TOKENS_COUNTER = "vllm:generation_tokens_total"


def completion_body(model: str, request: GenerationRequest, sampling: SamplingParams) -> dict[str, Any]:
    """Body of `/v1/completions`, with all that shapes the distribution: a server has its own defaults."""
    return {
        "model": model,
        "prompt": request.token_ids.tolist(),
        "max_tokens": request.max_new_tokens,
        "seed": request.seed,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "stop_token_ids": list(sampling.stop_token_ids),
        "ignore_eos": True,
        "logprobs": 0,
        "return_token_ids": True,
        "return_tokens_as_token_ids": True,
    }


def generation_from(answer: dict[str, Any], sampling: SamplingParams, version: int) -> Generation:
    """Converts a server's answer. Raises EngineDied for a request that ended in no regular way."""
    choice = answer["choices"][0]
    if choice["finish_reason"] not in ("stop", "length"):
        raise EngineDied(f"a request ended with {choice['finish_reason']!r}")
    return generation_of(
        choice["token_ids"], choice["logprobs"]["token_logprobs"], choice["finish_reason"], sampling, version
    )


async def post(session: aiohttp.ClientSession, url: str, body: dict[str, Any]) -> dict[str, Any]:
    """Posts JSON. Raises EngineError for a refused request, EngineDied when the server fails."""
    async with session.post(url, json=body) as response:
        if response.status == 200:
            return dict(await response.json())
        reason = error_message(await response.read(), response.status)
    raise EngineError(f"{url} refused a request: {reason}") if response.status < 500 else EngineDied(reason)


async def watch_progress(session: aiohttp.ClientSession, url: str, deadline_seconds: float) -> None:
    """Raises EngineDied when the server generates nothing for so long; never returns otherwise."""
    last = -1.0
    while True:
        try:
            async with asyncio.timeout(deadline_seconds), session.get(f"{url}/metrics") as response:
                generated = tokens_generated(await response.text())
        except TimeoutError:
            raise EngineDied(f"it did not answer within {deadline_seconds:.0f} s") from None
        if generated == last:
            raise EngineDied(f"it generated nothing for {deadline_seconds:.0f} s")
        last = generated
        await asyncio.sleep(deadline_seconds)


def tokens_generated(metrics: str) -> float:
    """Sum of vLLM's token counters in its Prometheus text."""
    return sum(
        float(line.rsplit(" ", 1)[1]) for line in metrics.splitlines() if line.startswith(TOKENS_COUNTER)
    )
