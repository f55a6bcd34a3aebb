"""The in-process engine for small models: batched sampling with a KV cache through `transformers`, no server, no GPU needed."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import numpy as np
import torch
from transformers import AutoConfig, AutoModelForCausalLM, DynamicCache, PreTrainedModel

from bapo_lightning.errors import EngineError
from bapo_lightning.rollout.engine import UNSYNCED_VERSION, Generation, GenerationRequest, SamplingParams, WeightSource, check_synced
from bapo_lightning.rollout.seeds import uniforms
from bapo_lightning.rollout.weight_transport import check_complete
from bapo_lightning.types import FinishReason, Segment

COMPACTION_SHARE = 0.125  # rows leave the batch once this share of it has finished: each compaction copies the KV cache


class HFEngine:
    """Samples with its own copy of the model. It does not share memory with the trainer, so its weights change only by a sync."""

    def __init__(self, model_path: str, max_rows: int = 512, dtype: str = "float32", device: str = "auto") -> None:
        """
        Args:
            model_path: Hugging Face folder or hub name; only its config is read, weights come from the trainer.
            max_rows: rows sampled at once; bounds the KV cache.
            dtype: of weights and cache, for example float32 or bfloat16.
            device: torch device to sample on; auto takes a GPU where there is one.
        """
        if device == "auto":
            device = "cuda" if torch.cuda.is_available() else "cpu"
        config = AutoConfig.from_pretrained(model_path)
        self._model: PreTrainedModel = AutoModelForCausalLM.from_config(config, dtype=getattr(torch, dtype)).to(device).eval()
        self._model.requires_grad_(False)
        self._device = torch.device(device)
        self._max_rows = max_rows
        self._version = UNSYNCED_VERSION

    @property
    def version(self) -> int:
        """Policy version of the weights held."""
        return self._version

    def generate(self, requests: Sequence[GenerationRequest], sampling: SamplingParams) -> list[Generation]:
        """See `RolloutEngine.generate`."""
        check_synced(self._version)
        results: list[Generation] = []
        with torch.inference_mode():
            for first in range(0, len(requests), self._max_rows):
                results += self._generate_rows(requests[first : first + self._max_rows], sampling)
        return results

    def load_weights(self, source: WeightSource, version: int) -> None:
        """See `RolloutEngine.load_weights`."""
        own = dict(self._model.named_parameters())
        missing = set(own)
        with torch.no_grad():
            for name, weight in source.named_weights():
                if name not in own:
                    raise EngineError(f"the trainer sent a weight {name!r} that the engine's model does not have")
                if own[name].shape != weight.shape:
                    raise EngineError(f"weight {name!r} has shape {tuple(weight.shape)}, the engine's has {tuple(own[name].shape)}")
                own[name].copy_(weight)
                missing.discard(name)
        check_complete(sorted(missing))
        self._version = version

    def sleep(self) -> None:
        """Nothing: its memory is small and stays."""

    def restart(self) -> None:
        """There is no process that could have died."""
        raise EngineError("an engine inside the training process cannot be restarted")

    def close(self) -> None:
        """Nothing to give back beyond memory, which goes with the object."""

    def _generate_rows(self, requests: Sequence[GenerationRequest], sampling: SamplingParams) -> list[Generation]:
        """Sample all rows together; a row leaves the batch soon after it finishes."""
        token_ids, attention_mask = _left_padded([request.token_ids for request in requests], self._device)
        limits = torch.tensor([request.max_new_tokens for request in requests], device=self._device)
        stops = torch.tensor(sampling.stop_token_ids, device=self._device)
        sampled = torch.zeros(len(requests), int(limits.max()), dtype=torch.int32, device=self._device)
        logprobs = torch.zeros(sampled.shape, dtype=torch.float32, device=self._device)
        lengths = torch.zeros_like(limits)
        seeds = np.array([request.seed for request in requests], dtype=np.uint64)
        rows = torch.arange(len(requests), device=self._device)  # request of each row still in the batch
        alive = torch.ones_like(rows, dtype=torch.bool)
        stopped = torch.zeros_like(alive)
        cache = DynamicCache()
        position_ids = (attention_mask.cumsum(-1) - 1).clamp_min(0)
        for step in range(sampled.shape[1]):
            logits = self._model(
                token_ids,
                attention_mask=attention_mask,
                position_ids=position_ids,
                past_key_values=cache,
                use_cache=True,
                logits_to_keep=1,
            ).logits[:, -1]
            draws = torch.from_numpy(uniforms(seeds, step)).to(self._device)
            chosen, chosen_logprobs = sample_tokens(logits, sampling, draws)
            sampled[rows, step] = chosen.int()
            logprobs[rows, step] = chosen_logprobs
            lengths[rows] += alive
            ended = alive & torch.isin(chosen, stops)
            stopped[rows] |= ended
            alive = alive & ~ended & (step + 1 < limits[rows])
            num_alive = int(alive.sum())
            if num_alive == 0:
                break
            token_ids, position_ids = chosen[:, None], position_ids[:, -1:] + 1
            attention_mask = torch.cat([attention_mask, attention_mask.new_ones(len(rows), 1)], dim=1)
            if num_alive <= (1 - COMPACTION_SHARE) * len(rows):
                keep = alive.nonzero()[:, 0]
                cache.batch_select_indices(keep)
                token_ids, position_ids, attention_mask = token_ids[keep], position_ids[keep], attention_mask[keep]
                rows, alive, seeds = rows[keep], alive[keep], seeds[keep.cpu().numpy()]
        return _generations(sampled.cpu().numpy(), logprobs.cpu().numpy(), lengths.tolist(), stopped.tolist(), self._version)


def sample_tokens(logits: torch.Tensor, sampling: SamplingParams, draws: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw one token per row of `logits[B, V]`: (tokens[B], log-probs[B] in nats under the distribution drawn from).

    Args:
        logits: next-token logits.
        sampling: temperature, top_k, top_p, in that order. Greedy (temperature 0) puts all mass on the best token: log-prob 0.
        draws: [B] numbers in [0, 1), float64; each picks the token at whose share of the cumulative probability it falls.
    """
    if sampling.temperature == 0:
        best = logits.argmax(-1)
        return best, torch.zeros_like(best, dtype=torch.float32)
    logprobs = truncated(logits.float() / sampling.temperature, sampling.top_k, sampling.top_p).log_softmax(-1)
    cumulative = logprobs.double().exp().cumsum(-1)
    chosen = torch.searchsorted(cumulative, (draws * cumulative[:, -1])[:, None], right=True).clamp_max(logits.shape[-1] - 1)
    return chosen[:, 0], logprobs.gather(-1, chosen)[:, 0]


def truncated(logits: torch.Tensor, top_k: int, top_p: float) -> torch.Tensor:
    """`logits[B, V]` with -inf outside the `top_k` likeliest tokens and then outside the smallest set that holds mass `top_p`."""
    if 0 < top_k < logits.shape[-1]:
        logits = logits.masked_fill(logits < logits.topk(top_k).values[:, -1:], -torch.inf)
    if top_p < 1:
        ordered, places = logits.sort(descending=True)
        mass = ordered.softmax(-1)
        beyond = mass.cumsum(-1) - mass >= top_p  # what stands before a token already holds enough
        logits = logits.masked_fill(beyond.scatter(-1, places, beyond), -torch.inf)
    return logits


def _left_padded(sequences: Sequence[array[int]], device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    width = max(len(sequence) for sequence in sequences)
    token_ids = torch.zeros(len(sequences), width, dtype=torch.long)
    mask = torch.zeros(len(sequences), width, dtype=torch.long)
    for row, sequence in enumerate(sequences):
        token_ids[row, width - len(sequence) :] = torch.tensor(sequence, dtype=torch.long)
        mask[row, width - len(sequence) :] = 1
    return token_ids.to(device), mask.to(device)


def _generations(tokens: np.ndarray, logprobs: np.ndarray, lengths: list[int], stopped: list[bool], version: int) -> list[Generation]:
    generations = []
    for row, length in enumerate(lengths):
        ids, values = array("i"), array("f")
        ids.frombytes(tokens[row, :length].tobytes())
        values.frombytes(logprobs[row, :length].tobytes())
        finish = FinishReason.STOP if stopped[row] else FinishReason.LENGTH
        generations.append(Generation(Segment(ids, values, version), finish))
    return generations
