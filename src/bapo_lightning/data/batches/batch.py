"""One optimizer update's worth of samples as tensors, and its split into micro-batches.

Shapes: B samples of a minibatch, T tokens of its longest sample (prompt directly followed by response, padded
on the right), N response tokens of a micro-batch laid out flat, sample after sample. A micro-batch is padded
like the minibatch, to its own longest sample, or B = 1 row of T tokens, in one of the layouts of
`layout`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bapo_lightning.data.batches.layout import Layout, SharedRow, arranged, prompt_numbers, ramps
from bapo_lightning.data.batches.micro_batches import rows_by_token_budget
from bapo_lightning.errors import StaleDataError
from bapo_lightning.types import Group, Rollout


@dataclass(frozen=True)
class ModelInput:
    """Samples that pass through the model together. Response tokens are flat; `index` finds them in the
    grid.
    """

    input_ids: Tensor  # [B, T]
    index: Tensor  # [N] flat position b * T + t whose hidden state predicts each response token
    targets: Tensor  # [N] the response tokens
    # Tokens of each sample in a packed row; empty in other layouts.
    packed_lengths: tuple[int, ...] = field(default=(), kw_only=True)
    shared: SharedRow | None = field(default=None, kw_only=True)  # of a row in which prompts stand once


@dataclass(frozen=True)
class MicroBatch(ModelInput):
    """A part of a minibatch, with everything that an update needs to know about its tokens."""

    behaviour_logp: Tensor  # [N] nats
    proximal_logp: Tensor  # [N] nats
    version: Tensor  # [N] policy version that sampled each token
    advantage: Tensor  # [N]
    weight: Tensor  # [N] share of each token in the global minibatch's mean


@dataclass(frozen=True)
class TrainBatch:
    """A minibatch: the samples of one optimizer update and their origin."""

    input_ids: Tensor  # [B, T]
    response_mask: Tensor  # [B, T] True at the response tokens that are trained on
    behaviour_logp: Tensor  # [B, T] nats, 0 elsewhere
    # [B, T] nats, what the ratio is taken to: by the trainer's weights at entry, or behaviour_logp
    proximal_logp: Tensor
    version: Tensor  # [B, T] policy version that sampled each token, 0 elsewhere
    advantage: Tensor  # [B]
    # Tokens before the trained ones; B numbers on the host, so that the split waits for no device.
    context_lengths: tuple[int, ...]
    # Trained tokens; fewer than in the rollout where its first segments are too old.
    response_lengths: tuple[int, ...]
    prompts: tuple[int, ...]  # number of each sample's prompt, equal where prompts are
    prompt_lengths: tuple[int, ...]  # tokens of the prompts
    groups: tuple[Group, ...]
    metrics: dict[str, float]  # measured while producing, logged with the update
    global_batch: TrainBatch | None = (
        None  # in the controller's share: the minibatch of all ranks, on the host
    )

    def to(self, device: torch.device | str, non_blocking: bool = False) -> TrainBatch:
        """Copy with its tensors on `device`."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        moved: dict[str, Any] = {
            k: v.to(device, non_blocking=non_blocking) for k, v in values.items() if isinstance(v, Tensor)
        }
        return replace(self, **moved)

    @property
    def num_tokens(self) -> int:
        """Number of response tokens that are trained on."""
        return sum(self.response_lengths)

    @property
    def num_masked_tokens(self) -> int:
        """Number of response tokens that are too old to be trained on."""
        return sum(rollout.length for rollout in self.rollouts) - self.num_tokens

    @property
    def num_samples(self) -> int:
        """Number of samples, B."""
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
        """Raises StaleDataError unless every token's age at policy `version` lies in [0, max_age]."""
        oldest, newest = self.version_range()
        if newest > version:
            raise StaleDataError(
                f"a token claims policy version {newest}, but the trainer has only reached {version}: "
                "versions are mixed up"
            )
        if version - oldest > max_age:
            raise StaleDataError(
                f"a token sampled by policy version {oldest} is {version - oldest} updates old, the regime "
                f"allows {max_age}"
            )

    def split(self, token_budget: int, weights: Tensor, layout: Layout = Layout.PADDED) -> list[MicroBatch]:
        """Splits into micro-batches of about equal size, at most `token_budget` tokens each (a longer sample
        stands alone).

        Args:
            token_budget: of one micro-batch; see `rows_by_token_budget`.
            weights: [B, T] from `objectives.weighting`, normalised over the global minibatch; sliced, never
                renormalised, so that the sum over micro-batches does not depend on the split.
            layout: of each micro-batch.
        """
        lengths = [
            context + response
            for context, response in zip(self.context_lengths, self.response_lengths, strict=True)
        ]
        return [
            self._select(rows, weights, layout)
            for rows in rows_by_token_budget(lengths, token_budget, layout, self.prompts)
        ]

    def _select(self, rows: list[int], weights: Tensor, layout: Layout) -> MicroBatch:
        contexts = np.array([self.context_lengths[row] for row in rows])
        responses = np.array([self.response_lengths[row] for row in rows])
        prompts, prompt_lengths = (
            [self.prompts[row] for row in rows],
            np.array([self.prompt_lengths[row] for row in rows]),
        )
        grid = arranged(layout, prompts, prompt_lengths, contexts + responses)
        columns = np.repeat(contexts, responses) + ramps(responses)
        samples = np.repeat(np.arange(len(rows)), responses)
        device, width = self.input_ids.device, self.input_ids.shape[1]
        numbers = np.array(rows)
        source = torch.from_numpy(numbers[samples] * width + columns).to(device)
        picked = torch.from_numpy(numbers).to(device)
        cells = torch.from_numpy(numbers[grid.samples] * width + grid.columns).to(device)
        return MicroBatch(
            input_ids=self.input_ids.view(-1)[cells],
            index=torch.from_numpy(grid.cell(samples, columns - 1)).to(device),
            targets=self.input_ids.view(-1)[source],
            packed_lengths=grid.packed_lengths,
            shared=grid.shared,
            behaviour_logp=self.behaviour_logp.view(-1)[source],
            proximal_logp=self.proximal_logp.view(-1)[source],
            version=self.version.view(-1)[source],
            advantage=self.advantage[picked].repeat_interleave(
                torch.from_numpy(responses).to(device), output_size=len(source)
            ),
            weight=weights.reshape(-1)[source],
        )


def padded_ids(rollouts: Sequence[Rollout]) -> np.ndarray:
    """Token ids, [B, T] int64: each prompt directly followed by its response, zeros on the right."""
    lengths = [len(rollout.prompt_ids) + rollout.length for rollout in rollouts]
    input_ids = np.zeros((len(rollouts), max(lengths)), np.int64)
    for row, rollout in enumerate(rollouts):
        input_ids[row, : lengths[row]] = rollout.prompt_ids + rollout.response_ids
    return input_ids


def model_input(
    rollouts: Sequence[Rollout], device: torch.device, layout: Layout = Layout.PADDED
) -> ModelInput:
    """Makes the input of a policy that scores the response tokens of `rollouts`, in their order."""
    prompts, responses = (
        np.array(lengths) for lengths in zip(*((len(r.prompt_ids), r.length) for r in rollouts), strict=True)
    )
    input_ids = padded_ids(rollouts)
    grid = arranged(layout, prompt_numbers(rollouts), prompts, prompts + responses)
    samples, columns = (
        np.repeat(np.arange(len(rollouts)), responses),
        np.repeat(prompts, responses) + ramps(responses),
    )
    return ModelInput(
        torch.from_numpy(input_ids[grid.samples, grid.columns]).to(device),
        torch.from_numpy(grid.cell(samples, columns - 1)).to(device),
        torch.from_numpy(input_ids[samples, columns]).to(device),
        packed_lengths=grid.packed_lengths,
        shared=grid.shared,
    )


def collate(
    groups: Sequence[Group], metrics: dict[str, float], oldest_trained: int | None = None
) -> TrainBatch:
    """Lays the samples of `groups` out as tensors. Empty responses cannot occur: every engine samples at
    least one token.

    Args:
        groups: of one minibatch.
        metrics: logged with its update.
        oldest_trained: tokens of older policy versions are context only. Versions rise along a response, so
            the omitted part is its beginning, and the rest looks like a response to a longer prompt. None
            trains on all.
    """
    samples = [sample for group in groups for sample in group.samples]
    rollouts = [sample.rollout for sample in samples]
    skipped = [
        0 if oldest_trained is None else tokens_before(rollout, oldest_trained) for rollout in rollouts
    ]
    context_lengths = tuple(
        len(rollout.prompt_ids) + skip for rollout, skip in zip(rollouts, skipped, strict=True)
    )
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
        advantage=torch.tensor(
            [value for group in groups for value in group.advantages], dtype=torch.float32
        ),
        context_lengths=context_lengths,
        response_lengths=response_lengths,
        prompts=prompt_numbers(rollouts),
        prompt_lengths=tuple(len(rollout.prompt_ids) for rollout in rollouts),
        groups=tuple(groups),
        metrics=metrics,
    )


def tokens_before(rollout: Rollout, version: int) -> int:
    """Number of tokens of `rollout` that policies older than `version` sampled."""
    return sum(len(segment.token_ids) for segment in rollout.segments if segment.version < version)
