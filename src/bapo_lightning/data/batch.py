"""One optimizer update's worth of samples as tensors, and its split into micro-batches.

Shapes: B samples of a minibatch, T tokens of its longest sample (prompt directly followed by response, padded on the right),
N response tokens of a micro-batch laid out flat, sample after sample. A micro-batch is padded like the minibatch, to its own longest
sample, or packed: B = 1 row in which the samples stand one after another, T tokens in all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bapo_lightning.data.micro_batches import rows_by_token_budget
from bapo_lightning.errors import StaleDataError
from bapo_lightning.types import Group, Rollout


@dataclass(frozen=True)
class ModelInput:
    """Samples that pass through the model together. Response tokens are flat; `index` finds them in the grid."""

    input_ids: Tensor  # [B, T]
    index: Tensor  # [N] flat position b * T + t whose hidden state predicts each response token
    targets: Tensor  # [N] the response tokens
    packed_lengths: tuple[int, ...] = field(default=(), kw_only=True)  # tokens of each sample in a packed row; empty: padded


@dataclass(frozen=True)
class MicroBatch(ModelInput):
    """A part of a minibatch, with all that an update needs of its tokens."""

    behaviour_logp: Tensor  # [N] nats
    proximal_logp: Tensor  # [N] nats
    version: Tensor  # [N] policy version that sampled each token
    advantage: Tensor  # [N]
    weight: Tensor  # [N] share of each token in the global minibatch's mean


@dataclass(frozen=True)
class TrainBatch:
    """A minibatch: the samples of one optimizer update, with all that is known of their origin."""

    input_ids: Tensor  # [B, T]
    response_mask: Tensor  # [B, T] True at the response tokens that are trained on
    behaviour_logp: Tensor  # [B, T] nats, 0 elsewhere
    proximal_logp: Tensor  # [B, T] nats, what the ratio is taken to: by the trainer's weights at entry, or behaviour_logp
    version: Tensor  # [B, T] policy version that sampled each token, 0 elsewhere
    advantage: Tensor  # [B]
    context_lengths: tuple[int, ...]  # tokens before those trained; B numbers on the host, so that the split waits for no device
    response_lengths: tuple[int, ...]  # tokens trained on; fewer than the rollout has where its first segments are too old
    groups: tuple[Group, ...]
    metrics: dict[str, float]  # measured while producing, logged with the update
    whole: TrainBatch | None = None  # of a leader's share: the minibatch of all ranks, on the host

    def to(self, device: torch.device | str, non_blocking: bool = False) -> TrainBatch:
        """Copy with its tensors on `device`."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        moved: dict[str, Any] = {k: v.to(device, non_blocking=non_blocking) for k, v in values.items() if isinstance(v, Tensor)}
        return replace(self, **moved)

    @property
    def num_tokens(self) -> int:
        """Response tokens that are trained on."""
        return sum(self.response_lengths)

    @property
    def num_masked_tokens(self) -> int:
        """Response tokens that are too old to be trained on."""
        return sum(rollout.length for rollout in self.rollouts) - self.num_tokens

    @property
    def num_samples(self) -> int:
        """Samples in the batch, B."""
        return len(self.response_lengths)

    @property
    def rollouts(self) -> list[Rollout]:
        """The rollouts, in row order."""
        return [sample.rollout for group in self.groups for sample in group.samples]

    def version_range(self) -> tuple[int, int]:
        """Smallest and largest policy version of any token that is trained on."""
        oldest, newest = [], []
        for rollout, trained in zip(self.rollouts, self.response_lengths, strict=True):
            first = rollout.length - trained
            for segment in rollout.segments:
                first -= len(segment.token_ids)
                if first < 0:  # this segment reaches into the trained part
                    oldest.append(segment.version)
                    newest.append(rollout.segments[-1].version)
                    break
        return min(oldest), max(newest)

    def check_ages(self, version: int, max_age: int) -> None:
        """Raise StaleDataError unless every token's age at policy `version` lies in [0, max_age]."""
        oldest, newest = self.version_range()
        if newest > version:
            raise StaleDataError(
                f"a token claims policy version {newest}, but the trainer has only reached {version}: versions are mixed up"
            )
        if version - oldest > max_age:
            raise StaleDataError(
                f"a token sampled by policy version {oldest} is {version - oldest} updates old, the regime allows {max_age}"
            )

    def split(self, token_budget: int, weights: Tensor, packed: bool = False) -> list[MicroBatch]:
        """Micro-batches of about equal size, at most `token_budget` tokens each (a longer sample stands alone).

        Args:
            token_budget: of one micro-batch; see `rows_by_token_budget`.
            weights: [B, T] from `objectives.weighting`, normalised over the global minibatch; sliced, never renormalised, so that
                the sum over micro-batches does not depend on the split.
            packed: without padding, all samples of a micro-batch in one row.
        """
        lengths = [prompt + response for prompt, response in zip(self.context_lengths, self.response_lengths, strict=True)]
        return [self._select(rows, weights, packed) for rows in rows_by_token_budget(lengths, token_budget, packed)]

    def _select(self, rows: list[int], weights: Tensor, packed: bool) -> MicroBatch:
        contexts = np.array([self.context_lengths[row] for row in rows])
        responses = np.array([self.response_lengths[row] for row in rows])
        columns = response_columns(contexts, responses)
        device = self.input_ids.device
        lengths = contexts + responses
        local = torch.from_numpy(np.repeat(row_starts(lengths, packed), responses) + columns - 1).to(device)
        source = torch.from_numpy(np.repeat(np.array(rows) * self.input_ids.shape[1], responses) + columns).to(device)
        picked = torch.tensor(rows, device=device)
        if packed:
            input_ids = torch.cat([self.input_ids[row, :length] for row, length in zip(rows, lengths.tolist(), strict=True)])[None]
        else:
            input_ids = self.input_ids[picked, : int(lengths.max())]
        return MicroBatch(
            input_ids=input_ids,
            index=local,
            targets=self.input_ids.view(-1)[source],
            packed_lengths=tuple(lengths.tolist()) if packed else (),
            behaviour_logp=self.behaviour_logp.view(-1)[source],
            proximal_logp=self.proximal_logp.view(-1)[source],
            version=self.version.view(-1)[source],
            advantage=self.advantage[picked].repeat_interleave(torch.from_numpy(responses).to(device), output_size=len(source)),
            weight=weights.reshape(-1)[source],
        )


def response_columns(prompts: np.ndarray, responses: np.ndarray) -> np.ndarray:
    """Column of each response token, [N], row after row, from the rows' prompt lengths and response lengths."""
    offsets = np.arange(responses.sum()) - np.repeat(responses.cumsum() - responses, responses)  # 0..length-1 in each row
    return np.repeat(prompts, responses) + offsets


def row_starts(lengths: np.ndarray, packed: bool) -> np.ndarray:
    """Flat position of each sample's first token in a micro-batch, [B], from the samples' lengths."""
    return lengths.cumsum() - lengths if packed else np.arange(len(lengths)) * lengths.max()


def padded_ids(rollouts: Sequence[Rollout]) -> np.ndarray:
    """Token ids, [B, T] int64: each prompt directly followed by its response, zeros on the right."""
    lengths = [len(rollout.prompt_ids) + rollout.length for rollout in rollouts]
    input_ids = np.zeros((len(rollouts), max(lengths)), np.int64)
    for row, rollout in enumerate(rollouts):
        input_ids[row, : lengths[row]] = rollout.prompt_ids + rollout.response_ids
    return input_ids


def model_input(rollouts: Sequence[Rollout], device: torch.device, packed: bool = False) -> ModelInput:
    """What a policy needs to score the response tokens of `rollouts`, in their order."""
    prompts, responses = (np.array(lengths) for lengths in zip(*((len(r.prompt_ids), r.length) for r in rollouts), strict=True))
    lengths = prompts + responses
    if packed:
        input_ids = np.concatenate([ids for r in rollouts for ids in (r.prompt_ids, r.response_ids)])[None].astype(np.int64)
    else:
        input_ids = padded_ids(rollouts)
    targets = np.repeat(row_starts(lengths, packed), responses) + response_columns(prompts, responses)
    ids = torch.from_numpy(input_ids).to(device)
    position = torch.from_numpy(targets).to(device)
    return ModelInput(ids, position - 1, ids.view(-1)[position], packed_lengths=tuple(lengths.tolist()) if packed else ())


def collate(groups: Sequence[Group], metrics: dict[str, float], oldest_trained: int | None = None) -> TrainBatch:
    """Lay the samples of `groups` out as tensors. Empty responses cannot occur: every engine samples at least one token.

    Args:
        groups: of one minibatch.
        metrics: logged with its update.
        oldest_trained: tokens of older policy versions are context only. Versions rise along a response, so what is left out is its
            beginning, and the rest looks like a response to a longer prompt. None trains on all.
    """
    samples = [sample for group in groups for sample in group.samples]
    rollouts = [sample.rollout for sample in samples]
    skipped = [0 if oldest_trained is None else tokens_before(rollout, oldest_trained) for rollout in rollouts]
    context_lengths = tuple(len(rollout.prompt_ids) + skip for rollout, skip in zip(rollouts, skipped, strict=True))
    response_lengths = tuple(rollout.length - skip for rollout, skip in zip(rollouts, skipped, strict=True))
    input_ids = padded_ids(rollouts)
    version, mask = np.zeros(input_ids.shape, np.int64), np.zeros(input_ids.shape, np.bool_)
    behaviour, proximal = np.zeros(input_ids.shape, np.float32), np.zeros(input_ids.shape, np.float32)
    for row, (sample, rollout) in enumerate(zip(samples, rollouts, strict=True)):
        skip, start, end = skipped[row], context_lengths[row], context_lengths[row] + response_lengths[row]
        behaviour[row, start:end] = rollout.logprobs[skip:]
        recomputed = sample.proximal_logprobs
        proximal[row, start:end] = behaviour[row, start:end] if recomputed is None else recomputed[skip:]
        version[row, start:end] = rollout.versions[skip:]
        mask[row, start:end] = True
    return TrainBatch(
        input_ids=torch.from_numpy(input_ids),
        response_mask=torch.from_numpy(mask),
        behaviour_logp=torch.from_numpy(behaviour),
        proximal_logp=torch.from_numpy(proximal),
        version=torch.from_numpy(version),
        advantage=torch.tensor([value for group in groups for value in group.advantages], dtype=torch.float32),
        context_lengths=context_lengths,
        response_lengths=response_lengths,
        groups=tuple(groups),
        metrics=metrics,
    )


def tokens_before(rollout: Rollout, version: int) -> int:
    """Tokens of `rollout` that policies older than `version` sampled."""
    return sum(len(segment.token_ids) for segment in rollout.segments if segment.version < version)
