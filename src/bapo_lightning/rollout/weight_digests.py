"""Digests of weights, by which the trainer detects an engine that holds other weights than it was sent.

An engine fuses, splits, pads and packs weights, so digests of all bytes cannot be compared. This digest is a
sum over the elements of a few whole columns of each weight, which every sync draws again: fused rows and
parts on several workers add up, zeros of a padding add nothing, and so few columns cost little. It is exact:
values that are equal in the engine's precision have equal digests.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, cast

import torch
from torch.nn.functional import pad

from bapo_lightning.rollout.engine import FACTOR_MARK, MERGED, MeasuredWeights, Wanted, WeightSource

COLUMNS = 8  # of each weight, in one sync
TOGETHER = 1 << 20  # numbers at once; bounds the memory of a digest, about 40 bytes each
DrawnPart = tuple[torch.Tensor, list[int]]  # columns of a weight that count, and their places
_MASK = 2**64 - 1
_FACTORS = (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9)  # odd: they lose no bit


@lru_cache(maxsize=256)
def drawn_columns(width: int, seed: int) -> list[int]:
    """Returns the drawn columns of all weights of a width, in one sync."""
    return sorted(random.Random(f"{seed}/{width}").sample(range(width), min(COLUMNS, width)))


def group_of(name: str) -> str:
    """Returns the module around the layer of a weight, since engines fuse layers of one module."""
    is_factor = FACTOR_MARK in name
    module = name.replace(".base_layer.", ".").rsplit(".", 2 + is_factor)[0]
    return f"{module}, adapters" if is_factor else module


def column_digest(columns: torch.Tensor, places: list[int]) -> torch.Tensor:
    """Returns the digest of columns [rows, k], as a scalar int64 on their device; a value has the same digest
    in every precision that can hold it. `places`: index of each of the k columns among the drawn columns of
    the whole weight.
    """
    return _row_digests(columns, places).sum()


def _row_digests(columns: torch.Tensor, places: list[int]) -> torch.Tensor:
    bits = (columns.float() + 0.0).view(torch.int32).long()  # + 0.0: no negative zeros
    mixed = bits * _signed(_FACTORS[0])
    mixed = (mixed ^ (mixed >> 29)) * _signed(_FACTORS[1])
    odd = torch.tensor([2 * place + 1 for place in places], device=columns.device)
    return ((mixed ^ (mixed >> 32)) * odd).sum(-1)


def drawn_part(name: str, weight: torch.Tensor, seed: int) -> DrawnPart:
    """Returns a copy of the columns of a whole weight that count, and their places: the drawn columns of a
    matrix, all of a vector or a narrow factor.
    """
    if weight.ndim < 2:
        return weight.reshape(-1, 1).clone(), [0]
    width = weight.shape[-1]
    drawn = list(range(width)) if name.endswith(f"{FACTOR_MARK}B.weight") else drawn_columns(width, seed)
    columns = torch.tensor(drawn, device=weight.device)
    return weight.flatten(0, -2).index_select(1, columns), list(range(len(drawn)))


def part_digests(parts: Mapping[str, DrawnPart]) -> dict[str, torch.Tensor]:
    """Returns the `column_digest` of each part, by its name. Parts of one width are computed together, since
    separate calls for the many small weights of a model would cost more than the work.
    """
    digests: dict[str, torch.Tensor] = {}
    for names in _alike(parts):
        rows = torch.cat([parts[name][0] for name in names])
        ends = torch.tensor([len(parts[name][0]) for name in names], device=rows.device).cumsum(0)
        up_to = pad(_row_digests(rows, parts[names[0]][1]).cumsum(0), (1, 0))  # wraps, like every sum here
        digests |= dict(zip(names, up_to[ends].diff(prepend=up_to[:1]), strict=True))
    return digests


def _alike(parts: Mapping[str, DrawnPart]) -> Iterator[list[str]]:
    """Yields names of parts that can be joined, of at most `TOGETHER` numbers or one part."""
    alike: dict[Any, list[str]] = {}
    sizes: Counter[Any] = Counter()
    for name, (columns, places) in parts.items():
        kind = columns.device, columns.dtype, tuple(places)
        if alike.get(kind) and sizes[kind] + columns.numel() > TOGETHER:
            yield alike.pop(kind)
            del sizes[kind]
        alike.setdefault(kind, []).append(name)
        sizes[kind] += columns.numel()
    yield from alike.values()


def summed(digests: Iterable[tuple[str, torch.Tensor | None]]) -> dict[str, int]:
    """Returns sums of the digests of named weights by group, without groups in which one is unknown."""
    known: list[tuple[str, torch.Tensor]] = []
    unknown = set()
    for name, digest in digests:
        if digest is None:
            unknown.add(group_of(name))
        else:
            known.append((group_of(name), digest))
    place = known[0][1].device if known else None
    # Together, so that the host waits once for the device, not for each weight.
    values = torch.stack([digest.to(place) for _, digest in known]).tolist() if known else []
    sums = added({group: value} for (group, _), value in zip(known, values, strict=True))
    return {group: value for group, value in sums.items() if group not in unknown}


def added(parts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """Returns sums of digests by group, for instance over an engine's workers, each of which holds a part."""
    sums: Counter[str] = Counter()
    for part in parts:
        sums.update(part)
    return {group: value & _MASK for group, value in sums.items()}


def _signed(value: int) -> int:
    return value - 2**64 if value >= 2**63 else value


@dataclass(slots=True)
class SentWeights:
    """A `WeightSource` that remembers the columns of its weights that count. Digests are made on request, so
    that an engine does not wait for them. Weights that are sent once, under adapters that are sent at every
    sync, keep the columns drawn at that time.
    """

    source: WeightSource | None = None
    next_seed: int = 0  # seed of the columns, from the next pass over all weights on
    seed: int = 0  # seed of the present digests
    _drawn: dict[str, DrawnPart] = field(default_factory=dict)  # parts without digests yet
    _digests: dict[str, torch.Tensor | None] = field(default_factory=dict)

    def named_weights(self, wanted: Wanted = MERGED) -> Iterator[tuple[str, torch.Tensor]]:
        """Makes one pass over the weights of the source."""
        assert self.source is not None
        if wanted.content != "adapters":
            self.seed = self.next_seed
            self._drawn.clear()
            self._digests.clear()
        for name, weight in self.source.named_weights(wanted):
            # Files of some families stack experts, which an engine then names in another module.
            is_stack = wanted.names == "files" and weight.ndim > 2
            if is_stack:
                self._digests[name] = None
            else:
                self._drawn[name] = drawn_part(name, weight.detach(), self.seed)
            yield name, weight

    def weight_shapes(self) -> Iterator[tuple[str, torch.dtype, torch.Size]]:
        """See `MeasuredWeights`."""
        return cast(MeasuredWeights, self.source).weight_shapes()

    def digests(self) -> dict[str, int]:
        """Returns digests of the weights sent, by group."""
        self._digests |= part_digests(self._drawn)
        self._drawn.clear()
        return summed(self._digests.items())
