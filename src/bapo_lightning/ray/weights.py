"""The trainer's weights in Ray's object store: written once, fetched once by each node, read by all of its
actors from shared memory.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

import ray
import torch

from bapo_lightning.errors import EngineError
from bapo_lightning.rollout.engine import FACTOR_MARK, MERGED, Wanted, WeightSource

# Name, dtype and shape of a weight, and its bytes as a numpy array, which Ray stores without a copy of its
# own and gives back as a view of the store.
Stored = tuple[str, str, list[int], Any]


@dataclass
class StoredWeights:
    """Weights of one version as a `WeightSource` for an engine on any node. The store keeps them as long as
    the trainer keeps this.
    """

    parts: list[Any]  # object references, each of a list[Stored]
    base: list[Any] = field(default_factory=list)  # the same of the weights under adapters, of all versions

    def named_weights(self, wanted: Wanted = MERGED) -> Iterator[tuple[str, torch.Tensor]]:
        """Views of the store, part by part. Raises EngineError when a part is lost."""
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
    """Puts weights into the store in parts of `part_megabytes` [MiB]; a larger tensor is a part of its own.
    Raises EngineError without room.
    """
    found: dict[bool, list[Any]] = {False: [], True: []}
    for is_factor, weights in groupby(source.named_weights(wanted), lambda item: FACTOR_MARK in item[0]):
        found[is_factor] += _stored(weights, part_megabytes)
    if wanted.content == "merged":
        return StoredWeights(found[False])
    return StoredWeights(found[True], found[False])


def _stored(weights: Iterable[tuple[str, torch.Tensor]], part_megabytes: int) -> Iterator[Any]:
    part: list[Stored] = []
    size = 0
    for name, weight in weights:
        values = weight.detach().to("cpu").contiguous().view(-1).view(torch.uint8).numpy()
        if part and size + values.nbytes > part_megabytes << 20:
            yield put(part)
            part, size = [], 0
        part.append((name, str(weight.dtype).removeprefix("torch."), list(weight.shape), values))
        size += values.nbytes
    if part:
        yield put(part)


def put(part: Sequence[Stored]) -> Any:
    """Stores one part. Raises EngineError without room."""
    try:
        return ray.put(list(part))
    except ray.exceptions.RayError as error:
        raise EngineError(
            f"Ray's object store did not take a part of the weights ({type(error).__name__}: {error}); start "
            "the nodes with a larger --object-store-memory"
        ) from error
