"""The trainer's weights in Ray's object store: written once, fetched once by a node, shared there."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

import ray
import torch

from bapo_lightning.extras.ray.joining import check_cluster
from bapo_lightning.rollout.engine import FACTOR_MARK, MERGED, Wanted, WeightSource
from bapo_lightning.rollout.weight_transport import in_parts
from bapo_lightning.system.errors import EngineError

# Name, dtype and shape of a weight, and its bytes as a numpy array, which Ray stores without another copy
# and returns as a view of the store.
Stored = tuple[str, str, list[int], Any]


@dataclass
class StoredWeights:
    """Weights of one version as a `WeightSource` for all nodes, stored while the trainer keeps this."""

    parts: list[Any]  # object references, each of a list[Stored]
    base: list[Any] = field(default_factory=list)  # the same for the weights under adapters, of all versions

    def named_weights(self, wanted: Wanted = MERGED) -> Iterator[tuple[str, torch.Tensor]]:
        """Views of the store, part by part. Raises EngineError if a part is lost."""
        for reference in [*self.base, *self.parts] if wanted.content == "split" else self.parts:
            try:
                part: list[Stored] = ray.get(reference)
            except ray.exceptions.RayError as error:
                raise EngineError(f"a part of the weights could not be fetched: {error}") from error
            for name, dtype, shape, values in part:
                with warnings.catch_warnings():
                    warnings.filterwarnings("ignore", ".*not writable.*")  # engines copy them
                    content = torch.from_numpy(values)
                yield name, content.view(getattr(torch, dtype)).view(shape)


def store(source: WeightSource, part_megabytes: int, wanted: Wanted) -> StoredWeights:
    """Puts weights into the store, in parts of `part_megabytes` [MiB]. Raises EngineError without room."""
    parts: dict[bool, list[Any]] = {False: [], True: []}
    for is_factor, weights in groupby(source.named_weights(wanted), lambda item: FACTOR_MARK in item[0]):
        parts[is_factor] += map(put, in_parts(weights, part_megabytes))
    if wanted.content == "merged":
        return StoredWeights(parts[False])
    return StoredWeights(parts[True], parts[False])


def put(part: Sequence[tuple[str, torch.Tensor]]) -> Any:
    """Stores one part. Raises EngineError without room."""
    stored: list[Stored] = [
        (
            name,
            str(weight.dtype).removeprefix("torch."),
            list(weight.shape),
            weight.view(-1).view(torch.uint8).numpy(),
        )
        for name, weight in part
    ]
    check_cluster()
    try:
        return ray.put(stored)
    except ray.exceptions.RayError as error:
        raise EngineError(
            f"Ray's object store did not take a part of the weights ({type(error).__name__}: {error}); start "
            "the nodes with a larger --object-store-memory"
        ) from error
