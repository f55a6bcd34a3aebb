"""One optimizer update's worth of samples as tensors, and its split into micro-batches.

Shapes: B samples of a minibatch, T tokens of its longest sample (prompt, response, padding on the right), N
response tokens of a micro-batch laid out flat, sample after sample. A micro-batch is padded likewise, to its
own longest sample, or is B = 1 row of T tokens, see `model_input`. An environment's tokens lie among the
response's; they are context and never count among the N.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from operator import add
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bapo_lightning.data.batches.model_input import (
    Layout,
    ModelInput,
    Place,
    Spans,
    balanced_parts,
    candidate_rows,
    contexts_and_gaps,
    laid_out,
    last_gaps,
    on_device,
    padded_ids,
    places_of,
    prompt_numbers,
    ramps,
    rows_by_token_budget,
)
from bapo_lightning.system.errors import StaleDataError
from bapo_lightning.types import Group, Rollout, Sample, Steps, are_trained


@dataclass(frozen=True)
class MicroBatch(ModelInput):
    """A part of a minibatch, with all that an update needs to know about its tokens."""

    behaviour_logp: Tensor  # [N] nats
    proximal_logp: Tensor  # [N] nats
    version: Tensor  # [N] policy version that sampled each token
    sequence: Tensor  # [N] number of each token's response in the minibatch
    group: Tensor  # [N] number of each token's group
    position: Tensor  # [N] number of response tokens before each token
    origin: Tensor  # [N] `types.Origin` of each token's response
    step: Tensor  # [N] number of each token's step within its response
    advantage: Tensor  # [N]
    weight: Tensor  # [N] share of each token in the global minibatch's mean
    entry_version: int  # policy version of the trainer when their batch entered training
    scores: dict[str, Tensor]  # [N] nats, of other policies; columns that the objective needs


@dataclass(frozen=True)
class TrainBatch:
    """A minibatch: the samples of one optimizer update and their origin."""

    input_ids: Tensor  # [B, T]
    response_mask: Tensor  # [B, T] True at the response tokens that are trained on
    behaviour_logp: Tensor  # [B, T] nats, 0 elsewhere
    # [B, T] nats, denominator of the ratio: under the trainer's weights at entry, or behaviour_logp
    proximal_logp: Tensor
    version: Tensor  # [B, T] policy version that sampled each token, 0 elsewhere
    advantage: Tensor  # [B]
    # Number of tokens before the trained ones; B numbers on the host, so that the split waits for no device.
    context_lengths: tuple[int, ...]
    # Number of trained tokens; fewer than in the rollout if its first segments are too old.
    response_lengths: tuple[int, ...]
    skipped: tuple[int, ...]  # sampled tokens of the response before them
    prompts: tuple[int, ...]  # number of each sample's prompt, equal for equal prompts
    prompt_lengths: tuple[int, ...]  # tokens of the prompts
    sequences: tuple[int, ...]  # number of each sample in the minibatch of all ranks
    group_numbers: tuple[int, ...]  # number of each sample's group in it
    origins: tuple[int, ...]  # `types.Origin` of each sample
    factor: Tensor  # [B] of each sample's weights in the loss, 1 unless its group has another
    groups: tuple[Group, ...]
    entry_version: int  # policy version of the trainer when the rollout batch entered training
    # [B, T] nats, under the trainer's weights at that time and under the run's first weights; columns of the
    # token table that the objective needs, by name
    scores: dict[str, Tensor]
    metrics: dict[str, float]  # measured during production, logged with the update
    global_batch: TrainBatch | None = None  # in the controller's share: batch of all ranks, on the host
    step: Tensor | None = None  # [B, T] number of each token's step within its response; None: no steps
    step_advantage: Tensor | None = None  # [B, T] of each token's step, in place of `advantage`
    step_counts: tuple[int, ...] = ()  # number of steps of each sample with trained tokens; empty: no steps
    # Feedback tokens between the first trained token and each; empty if no environment answered.
    gaps: tuple[np.ndarray, ...] = ()
    # [B, T, K] tokens that could have been sampled at each place, -1 for none; their log-probs at sampling
    # are among the scores. None if no candidates were recorded.
    candidates: Tensor | None = None

    def to(self, device: torch.device | str) -> TrainBatch:
        """Returns a copy with its tensors on `device`."""
        moved: dict[str, Any] = {
            name: on_device(value, device) for name, value in vars(self).items() if isinstance(value, Tensor)
        }
        scores = {name: on_device(grid, device) for name, grid in self.scores.items()}
        return replace(self, **moved, scores=scores)

    @property
    def num_tokens(self) -> int:
        """Number of response tokens that are trained on."""
        return sum(self.response_lengths)

    @property
    def num_masked_tokens(self) -> int:
        """Number of response tokens that are too old to be trained on."""
        trained = (sample for group in self.groups for sample in group.samples if sample.is_trained)
        return sum(sample.rollout.length for sample in trained) - self.num_tokens

    @property
    def num_samples(self) -> int:
        """Number of samples, B."""
        return len(self.response_lengths)

    @property
    def num_steps(self) -> int:
        """Number of steps with trained tokens; a response without steps counts as one."""
        return sum(self.step_counts) if self.step_counts else self.num_samples

    @property
    def lengths(self) -> list[int]:
        """Number of tokens of each sample that pass through the model, up to the last trained token."""
        pairs = zip(self.context_lengths, self.response_lengths, strict=True)
        per_sample = [context + response if response else 0 for context, response in pairs]
        return list(map(add, per_sample, last_gaps(self.gaps))) if self.gaps else per_sample

    @property
    def rollouts(self) -> list[Rollout]:
        """The rollouts, in row order."""
        return [sample.rollout for group in self.groups for sample in group.samples]

    @property
    def trained_samples(self) -> list[Sample]:
        """The samples with trained tokens, in row order."""
        samples = (sample for group in self.groups for sample in group.samples)
        return [sample for sample, length in zip(samples, self.response_lengths, strict=True) if length]

    def version_range(self) -> tuple[int, int]:
        """Returns the smallest and largest policy version of all tokens that are trained on."""
        trained = []
        for rollout, length in zip(self.rollouts, self.response_lengths, strict=True):
            end, first = 0, rollout.length - length
            for segment in rollout.aging_segments:
                end += len(segment.token_ids)
                trained += [segment.version] if end > first else []
        return min(trained), max(trained)

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
                f"a token of policy version {oldest} is {version - oldest} updates old, {max_age} are allowed"
            )

    def split(
        self,
        token_budget: int,
        weights: Tensor,
        layout: Layout = Layout.PADDED,
        mixed: bool = False,
        samples: Collection[int] | None = None,
    ) -> list[MicroBatch]:
        """Splits into micro-batches of about equal size, at most `token_budget` tokens each (a longer sample
        stands alone), whose rows are of `mixed` lengths or alike; see `rows_by_token_budget`. Samples without
        trained tokens are in none, nor are others than `samples`, if these are given by their `sequences`.

        The weights, [B, T] from `objectives.weighting`, are normalised over the global minibatch. They are
        sliced, never renormalised, so that the sum over micro-batches does not depend on the split.
        """
        lengths = self.lengths
        wanted = set(self.sequences if samples is None else samples)
        rows = [row for row, number in enumerate(self.sequences) if lengths[row] and number in wanted]
        lengths, prompts = [lengths[row] for row in rows], [self.prompts[row] for row in rows]
        parts = rows_by_token_budget(lengths, token_budget, layout, prompts, mixed) if rows else []
        return [self._select([rows[each] for each in part], weights, layout) for part in parts]

    def _select(self, rows: list[int], weights: Tensor, layout: Layout) -> MicroBatch:
        def of(values: Sequence[int]) -> np.ndarray:
            return np.array(values)[rows]

        responses = of(self.response_lengths)
        spans = Spans(of(self.prompts), of(self.prompt_lengths), of(self.context_lengths), responses)
        if self.gaps:
            spans = replace(spans, gaps=[self.gaps[row] for row in rows])
        inputs, source = laid_out(self.input_ids, rows, layout, spans)
        numbers = of(self.sequences), of(self.group_numbers), of(self.origins), of(self.skipped)
        of_samples = np.stack([rows, *numbers])
        known = np.repeat(of_samples, responses, axis=1)
        known[-1] += ramps(responses)
        row, sequence, group, origin, position = on_device(known, source.device)

        def at(grid: Tensor) -> Tensor:
            return grid.flatten(0, 1)[source]

        noted = None if self.candidates is None else at(self.candidates)
        return MicroBatch(
            **vars(inputs) | {"candidates": noted},
            behaviour_logp=at(self.behaviour_logp),
            proximal_logp=at(self.proximal_logp),
            version=at(self.version),
            sequence=sequence,
            group=group,
            position=position,
            origin=origin,
            step=torch.zeros_like(sequence) if self.step is None else at(self.step),
            advantage=self.advantage[row] if self.step_advantage is None else at(self.step_advantage),
            weight=at(weights),
            entry_version=self.entry_version,
            scores={name: at(grid) for name, grid in self.scores.items()},
        )


def collate(
    groups: Sequence[Group],
    metrics: dict[str, float],
    oldest_trained: int | None = None,
    entry_version: int | None = None,
) -> TrainBatch:
    """Lays out the samples of a minibatch as tensors.

    The trainer had `entry_version` when they entered training; None: the newest token's version.
    Tokens of policy versions before `oldest_trained` (None: no token) are only context. Versions rise along a
    response, so the omitted part is its beginning, and the rest looks like a response to a longer prompt.
    All tokens of a sample that is not trained on are context as well; it still counts among the samples. A
    group without trained samples keeps its tokens, with advantages of zero, so that every minibatch has
    tokens.
    """
    groups = [_with_tokens(group).branched for group in groups]
    samples = [sample for group in groups for sample in group.samples]
    rollouts = [sample.rollout for sample in samples]
    skipped = [
        sample.rollout.num_tokens_before(oldest_trained or 0) if sample.is_trained else sample.rollout.length
        for sample in samples
    ]
    response_lengths = tuple(rollout.length - skip for rollout, skip in zip(rollouts, skipped, strict=True))
    context_lengths, gaps = contexts_and_gaps(rollouts, skipped)
    places = places_of(context_lengths, response_lengths, gaps)
    input_ids = padded_ids(rollouts)
    grid = partial(_grid, input_ids.shape, skipped, places)
    version = grid(np.int64, (rollout.versions for rollout in rollouts))
    advantages = [advantage for group in groups for advantage in group.advantages]
    noted = candidate_rows(rollouts)
    scores = {  # that all samples have, without the denominator of the ratio
        name: grid(np.float32, [sample.scores[name] for sample in samples])
        for name in samples[0].scores
        if name != "proximal_logp" and all(name in sample.scores for sample in samples)
    }
    if noted is not None:
        scores["candidate_behaviour_logp"] = grid(np.float32, (logprobs for _, logprobs in noted))
    return TrainBatch(
        **_step_fields(samples, advantages, skipped, grid),
        input_ids=torch.from_numpy(input_ids),
        response_mask=grid(np.bool_, (np.ones(rollout.length, np.bool_) for rollout in rollouts)),
        behaviour_logp=grid(np.float32, (rollout.logprobs for rollout in rollouts)),
        proximal_logp=grid(
            np.float32, (sample.scores.get("proximal_logp", sample.rollout.logprobs) for sample in samples)
        ),
        version=version,
        advantage=torch.tensor(advantages, dtype=torch.float32),
        context_lengths=context_lengths,
        response_lengths=response_lengths,
        skipped=tuple(skipped),
        gaps=gaps,
        prompts=prompt_numbers(rollouts),
        prompt_lengths=tuple(len(rollout.prompt_ids) for rollout in rollouts),
        sequences=tuple(range(len(samples))),
        group_numbers=tuple(number for number, group in enumerate(groups) for _ in group.samples),
        origins=tuple(int(rollout.origin) for rollout in rollouts),
        factor=torch.tensor([group.weight for group in groups for _ in group.samples], dtype=torch.float32),
        groups=tuple(groups),
        entry_version=int(version.max()) if entry_version is None else entry_version,
        scores=scores,
        candidates=None if noted is None else grid(np.int64, (ids for ids, _ in noted)),
        metrics=metrics,
    )


def _grid(
    shape: tuple[int, ...], skipped: Sequence[int], places: Sequence[Place], kind: type, values: Iterable[Any]
) -> Tensor:
    """Returns [B, T], or [B, T, K], from one array for each sample's response tokens; 0 elsewhere."""
    arrays = list(values)
    grid: np.ndarray = np.zeros((*shape, *np.shape(arrays[0])[1:]), kind)
    for row, (sampled, skip, place) in enumerate(zip(arrays, skipped, places, strict=True)):
        grid[row, place] = sampled[skip:]
    return torch.from_numpy(grid)


def _step_fields(
    samples: Sequence[Sample],
    advantages: Sequence[float],
    skipped: Sequence[int],
    grid: Callable[[type, Iterable[Any]], Tensor],
) -> dict[str, Any]:
    if all(sample.steps is None for sample in samples):
        return {}
    steps = [
        sample.steps or Steps(array("i", [0]) * length, array("f", [advantage]) * length)
        for sample, advantage in zip(samples, advantages, strict=True)
        for length in [sample.rollout.length]
    ]
    return {
        "step": grid(np.int64, (each.numbers for each in steps)),
        "step_advantage": grid(np.float32, (each.advantages for each in steps)),
        "step_counts": tuple(
            len(set(each.numbers[skip:])) if sample.steps else 1  # a sample without steps counts as one
            for sample, each, skip in zip(samples, steps, skipped, strict=True)
        ),
    }


def _with_tokens(group: Group) -> Group:
    if are_trained(group.samples):
        return group
    samples = tuple(replace(sample, is_trained=True, steps=None) for sample in group.samples)
    return replace(group, samples=samples, advantages=(0.0,) * len(samples))


def split_over_ranks(batch: TrainBatch, num_ranks: int) -> list[TrainBatch]:
    """Returns the share of every rank: a batch without groups and metrics, possibly without samples. Sums
    over the shares are sums over the minibatch, for any number of ranks.
    """
    return [_share(batch, rows) for rows in balanced_parts(batch.lengths, num_ranks)]


def _share(batch: TrainBatch, rows: list[int]) -> TrainBatch:
    lengths, picked = batch.lengths, torch.tensor(rows, dtype=torch.long)
    width = max((lengths[row] for row in rows), default=0)

    def cut(value: Any) -> Any:
        if isinstance(value, Tensor):
            return value[picked, :width] if value.dim() > 1 else value[picked]
        return tuple(value[row] for row in rows) if isinstance(value, tuple) and value else value

    cut_fields = {name: cut(value) for name, value in vars(batch).items() if name != "groups"}
    scores = {name: cut(grid) for name, grid in batch.scores.items()}
    return TrainBatch(**cut_fields | {"groups": (), "entry_version": 0, "scores": scores, "metrics": {}})


def blank_batch(like: TrainBatch) -> TrainBatch:
    """Makes a batch of one sample that adds nothing to any sum, with the device and the scores of another. A
    rank with less work passes it through the model while others have more, because all ranks gather sharded
    weights and sum gradients together.
    """
    device = like.input_ids.device
    zeros = torch.zeros(1, 2, device=device)
    noted = like.candidates
    numbers: dict[str, Any] = dict.fromkeys(("context_lengths", "response_lengths", "prompt_lengths"), (1,))
    numbers |= dict.fromkeys(("skipped", "prompts", "sequences", "group_numbers", "origins"), (0,))
    return TrainBatch(
        input_ids=zeros.long(),
        response_mask=torch.tensor([[False, True]], device=device),
        behaviour_logp=zeros,
        proximal_logp=zeros,
        version=zeros.long(),
        advantage=zeros[0, :1],
        factor=zeros[0, :1],
        **numbers,
        groups=(),
        entry_version=0,
        scores={name: grid.new_zeros(1, 2, *grid.shape[2:]) for name, grid in like.scores.items()},
        candidates=None if noted is None else noted.new_full((1, 2, noted.shape[2]), -1),
        metrics={},
    )


@dataclass(eq=False)
class RolloutLoader:
    """One pass over a run's updates. Has a length, so that Lightning does not fetch ahead, and is lazy, so
    that a batch is produced only after the update before it.
    """

    num_updates: int
    next_batch: Callable[[], TrainBatch]

    def __len__(self) -> int:
        """Updates of the whole run."""
        return self.num_updates

    def __iter__(self) -> Iterator[TrainBatch]:
        """Batches without end; `__len__` ends the epoch."""
        while True:
            yield self.next_batch()
