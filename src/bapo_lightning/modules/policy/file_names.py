"""Gives weights the names of a model's files, if transformers uses other names or shapes in memory.

Since version 5 transformers renames weights (`embed_out` of GPT-NeoX) and fuses experts when it loads them,
and reverts both when it saves. Programs that read files themselves, such as vLLM, know the files' names.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from itertools import groupby
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import (
    WeightConverter,
    WeightRenaming,
    rename_source_key,
    revert_weight_conversion,
)

from bapo_lightning.rollout.engine import FACTOR_MARK

Named = tuple[str, Tensor]
PartOf = Callable[[str], str]  # name of a weight -> part of the model that is reverted together with it
_LAYER = re.compile(r".*?\.\d+\.")
# Parts of a model that are reverted together, smallest first: a weight, a layer, or the whole model.
_PARTS: tuple[PartOf, ...] = (
    lambda name: name,
    lambda name: match[0] if (match := _LAYER.match(name)) else name,
    lambda name: "",
)


def note_file_names(model: PreTrainedModel, names: Iterable[str]) -> None:
    """Lets weights get these file names again, as `from_pretrained` does for a model that it loads: in some
    families files of some models have a prefix, and files of others have none.
    """
    conversions = get_model_conversion_mapping(model)
    renamings = [each for each in conversions if isinstance(each, WeightRenaming)]
    converters = [each for each in conversions if isinstance(each, WeightConverter)]
    for name in names:
        rename_source_key(name, renamings, converters)
    used: Any = [each for each in conversions if each.was_used()]
    model._weight_conversions = used


def under_file_names(
    model: PreTrainedModel, weights: Iterable[Named], part_of: PartOf | None
) -> Iterator[Named]:
    """Yields all weights of a model, given under its own names and read one part at a time (`file_parts`), as
    `save_pretrained` writes them; factors of adapters stay as they are.
    """
    if part_of is None:
        yield from weights
        return
    for part, group in groupby(
        weights, lambda item: "factor" if FACTOR_MARK in item[0] else part_of(item[0])
    ):
        named = list(group)
        yield from named if part == "factor" else _reverted(model, named)


def without_memory(weights: Iterable[Named]) -> list[Named]:
    """Returns tensors of the same names, types and shapes, without memory."""
    return [(name, torch.empty(weight.shape, dtype=weight.dtype, device="meta")) for name, weight in weights]


def file_parts(model: PreTrainedModel, shapes: list[Named]) -> PartOf | None:
    """Returns the smallest parts of a model that can be reverted alone; None if nothing is reverted.
    `shapes` are tensors, which need no memory, with the names and shapes of all its weights.
    """
    whole = _names_and_shapes(_reverted(model, shapes))
    if whole == _names_and_shapes(shapes):
        return None
    for part_of in _PARTS:
        reverted: list[Named] = []
        try:
            for _, part in groupby(shapes, lambda item: part_of(item[0])):  # noqa: B023
                reverted += _reverted(model, part)
        except (RuntimeError, ValueError, KeyError, IndexError):  # a conversion needs more weights
            continue
        if _names_and_shapes(reverted) == whole and len(reverted) == len(whole):
            return part_of
    return _PARTS[-1]


def _reverted(model: PreTrainedModel, weights: Iterable[Named]) -> Iterable[Named]:
    return revert_weight_conversion(model, dict(weights)).items()


def _names_and_shapes(weights: Iterable[Named]) -> dict[str, torch.Size]:
    return {name: weight.shape for name, weight in weights}
