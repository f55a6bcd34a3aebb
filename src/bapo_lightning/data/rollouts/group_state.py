"""Groups as primitives and two flat arrays, so that a checkpoint of thousands of rollouts is a small tree and
two tensors.

Problems are stored by id: the training set has the rest. Everything loads with
`torch.load(weights_only=True)`.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import Any

import torch

from bapo_lightning.data.rollouts.unfinished import UnfinishedGroup, UnfinishedRollout
from bapo_lightning.types import (
    Completion,
    FinishReason,
    Group,
    Problem,
    Rollout,
    Sample,
    Score,
    ScoreStatus,
    Segment,
    WorkItem,
)

Span = list[int]  # start and length in one of the store's arrays
ProblemOfId = Callable[[str], Problem]


class ArrayStore:
    """Collects token ids and log-probs of many rollouts."""

    def __init__(self) -> None:
        self._ints, self._floats = array("i"), array("f")

    def add_ints(self, values: array[int]) -> Span:
        """Keep token ids; returns where."""
        self._ints.extend(values)
        return [len(self._ints) - len(values), len(values)]

    def add_floats(self, values: array[float]) -> Span:
        """Keep log-probs; returns where."""
        self._floats.extend(values)
        return [len(self._floats) - len(values), len(values)]

    def ints(self, span: Span) -> array[int]:
        """Token ids kept before."""
        return self._ints[span[0] : span[0] + span[1]]

    def floats(self, span: Span) -> array[float]:
        """Log-probs kept before."""
        return self._floats[span[0] : span[0] + span[1]]

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Both arrays."""
        return {
            "ints": torch.tensor(self._ints, dtype=torch.int32),
            "floats": torch.tensor(self._floats, dtype=torch.float32),
        }

    @classmethod
    def from_state_dict(cls, state: dict[str, torch.Tensor]) -> ArrayStore:
        """The store that `state_dict` was made of."""
        store = cls()
        store._ints.frombytes(state["ints"].numpy().tobytes())
        store._floats.frombytes(state["floats"].numpy().tobytes())
        return store


def pack_unfinished(store: ArrayStore, group: UnfinishedGroup) -> dict[str, Any]:
    """A group on its way."""
    return {
        "problem": group.draw.problem.id,
        "epoch": group.draw.epoch,
        "prompt_ids": store.add_ints(group.prompt_ids),
        "rollouts": [
            {"segments": _pack_segments(store, item.segments), "finish": _text(item.finish)}
            for item in group.rollouts
        ],
    }


def unpack_unfinished(store: ArrayStore, packed: dict[str, Any], problem: ProblemOfId) -> UnfinishedGroup:
    """Inverse of `pack_unfinished`. Raises DataError for an unknown problem."""
    rollouts = [
        UnfinishedRollout(
            _unpack_segments(store, item["segments"]),
            FinishReason(item["finish"]) if item["finish"] else None,
        )
        for item in packed["rollouts"]
    ]
    return UnfinishedGroup(
        WorkItem(problem(packed["problem"]), packed["epoch"]), store.ints(packed["prompt_ids"]), rollouts
    )


def pack_group(store: ArrayStore, group: Group) -> dict[str, Any]:
    """A scored group."""
    return {
        "problem": group.problem.id,
        "epoch": group.epoch,
        "ready_version": group.ready_version,
        "advantages": list(group.advantages),
        "prompt_ids": store.add_ints(group.samples[0].rollout.prompt_ids),
        "samples": [_pack_sample(store, sample) for sample in group.samples],
    }


def unpack_group(store: ArrayStore, packed: dict[str, Any], problem: ProblemOfId) -> Group:
    """Inverse of `pack_group`. Raises DataError for an unknown problem."""
    prompt_ids = store.ints(packed["prompt_ids"])
    return Group(
        problem=problem(packed["problem"]),
        samples=tuple(_unpack_sample(store, sample, prompt_ids) for sample in packed["samples"]),
        advantages=tuple(packed["advantages"]),
        epoch=packed["epoch"],
        ready_version=packed["ready_version"],
    )


def _pack_sample(store: ArrayStore, sample: Sample) -> dict[str, Any]:
    proximal = sample.proximal_logprobs
    return {
        "segments": _pack_segments(store, sample.rollout.segments),
        "finish": _text(sample.rollout.finish),
        "text": sample.completion.text,
        "value": sample.score.value,
        "status": _text(sample.score.status),
        "answer": sample.score.answer,
        "reward": sample.reward,
        "proximal_logprobs": None if proximal is None else store.add_floats(proximal),
    }


def _unpack_sample(store: ArrayStore, packed: dict[str, Any], prompt_ids: array[int]) -> Sample:
    rollout = Rollout(prompt_ids, _unpack_segments(store, packed["segments"]), FinishReason(packed["finish"]))
    proximal = packed["proximal_logprobs"]
    return Sample(
        rollout=rollout,
        completion=Completion(packed["text"], rollout.length, rollout.finish),
        score=Score(packed["value"], ScoreStatus(packed["status"]), packed["answer"]),
        reward=packed["reward"],
        proximal_logprobs=None if proximal is None else store.floats(proximal),
    )


def _pack_segments(store: ArrayStore, segments: tuple[Segment, ...]) -> list[list[Any]]:
    return [
        [item.version, store.add_ints(item.token_ids), store.add_floats(item.logprobs)] for item in segments
    ]


def _unpack_segments(store: ArrayStore, packed: list[list[Any]]) -> tuple[Segment, ...]:
    return tuple(
        Segment(store.ints(token_ids), store.floats(logprobs), version)
        for version, token_ids, logprobs in packed
    )


def _text(value: FinishReason | ScoreStatus | None) -> str | None:
    """A plain string: a safe load knows no enumerations."""
    return None if value is None else str(value)
