"""Packs groups into primitives and two flat arrays, so that a checkpoint of thousands of rollouts is a small
tree and two tensors, which `torch.load(weights_only=True)` loads. Problems are stored by id.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import torch

from bapo_lightning.data.rollouts.running_group import RunningGroup
from bapo_lightning.types import (
    Candidates,
    FinishReason,
    Group,
    Origin,
    Problem,
    Reply,
    Rollout,
    Sample,
    Score,
    ScoreStatus,
    Segment,
    Steps,
    WorkItem,
)

Span = list[int]  # start and length in one of the store's arrays
ProblemOfId = Callable[[str], Problem]


class ArrayStore:
    """Token ids and log-probs of many rollouts in two arrays."""

    def __init__(self) -> None:
        self._ints, self._floats = array("i"), array("f")

    def add_ints(self, values: array[int]) -> Span:
        """Stores token ids and returns their span."""
        self._ints.extend(values)
        return [len(self._ints) - len(values), len(values)]

    def add_floats(self, values: array[float]) -> Span:
        """Stores log-probs and returns their span."""
        self._floats.extend(values)
        return [len(self._floats) - len(values), len(values)]

    def ints(self, span: Span) -> array[int]:
        """Token ids of a span."""
        return self._ints[span[0] : span[0] + span[1]]

    def floats(self, span: Span) -> array[float]:
        """Log-probs of a span."""
        return self._floats[span[0] : span[0] + span[1]]

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Returns both arrays as tensors."""
        return {
            "ints": torch.tensor(self._ints, dtype=torch.int32),
            "floats": torch.tensor(self._floats, dtype=torch.float32),
        }

    @classmethod
    def from_state_dict(cls, state: dict[str, torch.Tensor]) -> ArrayStore:
        """Restores a store from its `state_dict`."""
        store = cls()
        store._ints.frombytes(state["ints"].numpy().tobytes())
        store._floats.frombytes(state["floats"].numpy().tobytes())
        return store


def pack_running(store: ArrayStore, group: RunningGroup) -> dict[str, Any]:
    """Packs a group that is still being sampled."""
    return {
        "problem": group.item.problem.id,
        "epoch": group.item.epoch,
        "hint": group.hint,
        "prompt_ids": store.add_ints(group.prompt_ids),
        "rollouts": [_pack_rollout(store, rollout) for rollout in group.rollouts],
    }


def unpack_running(store: ArrayStore, packed: dict[str, Any], problem: ProblemOfId) -> RunningGroup:
    """Inverse of `pack_running`. Raises DataError for an unknown problem."""
    prompt_ids = store.ints(packed["prompt_ids"])
    return RunningGroup(
        WorkItem(problem(packed["problem"]), packed["epoch"]),
        [_unpack_rollout(store, rollout, prompt_ids) for rollout in packed["rollouts"]],
        packed.get("hint", 0.0),
    )


def pack_group(store: ArrayStore, group: Group) -> dict[str, Any]:
    """Packs a scored group."""
    return {
        "problem": group.problem.id,
        "epoch": group.epoch,
        "ready_version": group.ready_version,
        "weight": group.weight,
        "hint": group.hint,
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
        weight=packed.get("weight", 1.0),
        hint=packed.get("hint", 0.0),
    )


def pack_continued(store: ArrayStore, rollout: Rollout) -> dict[str, Any]:
    """Packs an unfinished rollout with its prompt."""
    return _pack_rollout(store, rollout) | {"prompt_ids": store.add_ints(rollout.prompt_ids)}


def unpack_continued(store: ArrayStore, packed: dict[str, Any]) -> Rollout:
    """Inverse of `pack_continued`."""
    return _unpack_rollout(store, packed, store.ints(packed["prompt_ids"]))


def _pack_sample(store: ArrayStore, sample: Sample) -> dict[str, Any]:
    return _pack_rollout(store, sample.rollout) | {
        "text": sample.text,
        "value": sample.score.value,
        "status": str(sample.score.status),
        "answer": sample.score.answer,
        "parts": list(sample.score.parts),
        "reward": sample.reward,
        "scores": {name: store.add_floats(values) for name, values in sample.scores.items()},
        "steps": sample.steps
        and [store.add_ints(sample.steps.numbers), store.add_floats(sample.steps.advantages)],
        "is_trained": sample.is_trained,
    }


def _unpack_sample(store: ArrayStore, packed: dict[str, Any], prompt_ids: array[int]) -> Sample:
    steps = packed["steps"]
    return Sample(
        rollout=_unpack_rollout(store, packed, prompt_ids),
        text=packed["text"],
        score=Score(
            packed["value"], ScoreStatus(packed["status"]), packed["answer"], tuple(packed.get("parts", ()))
        ),
        reward=packed["reward"],
        scores={name: store.floats(span) for name, span in packed["scores"].items()},
        steps=None if steps is None else Steps(store.ints(steps[0]), store.floats(steps[1])),
        is_trained=packed["is_trained"],
    )


def _pack_rollout(store: ArrayStore, rollout: Rollout) -> dict[str, Any]:
    return {
        "segments": [_pack_segment(store, segment) for segment in rollout.segments],
        "finish": str(rollout.finish) if rollout.finish else None,  # a safe load refuses enumerations
        "origin": int(rollout.origin),
        "replies": [asdict(reply) for reply in rollout.replies],
    }


def _unpack_rollout(store: ArrayStore, packed: dict[str, Any], prompt_ids: array[int]) -> Rollout:
    segments = tuple(_unpack_segment(store, segment) for segment in packed["segments"])
    finish = FinishReason(packed["finish"]) if packed["finish"] else None
    replies = tuple(Reply(**reply) for reply in packed.get("replies", ()))
    return Rollout(prompt_ids, segments, finish, Origin(packed.get("origin", Origin.POLICY)), replies)


def _pack_segment(store: ArrayStore, segment: Segment) -> list[Any]:
    if segment.is_feedback:
        return [segment.version, store.add_ints(segment.token_ids), None, segment.after]
    logprobs = store.add_floats(segment.logprobs)
    candidates = []
    if (noted := segment.candidates) is not None:
        ids, values = store.add_ints(noted.token_ids), store.add_floats(noted.logprobs)
        candidates = [[ids, values, store.add_ints(noted.counts)]]
    return [segment.version, store.add_ints(segment.token_ids), logprobs, *candidates]


def _unpack_segment(store: ArrayStore, packed: list[Any]) -> Segment:
    version, token_ids, logprobs, *noted = packed
    if logprobs is None:
        return Segment.of_feedback(store.ints(token_ids), *noted)
    candidates = None
    for ids, values, counts in noted:  # one, if any were recorded
        candidates = Candidates(store.ints(ids), store.floats(values), store.ints(counts))
    return Segment(store.ints(token_ids), store.floats(logprobs), version, candidates=candidates)
