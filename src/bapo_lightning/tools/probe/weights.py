"""A model folder's own log-probs, with its weights in a server's precision, and how much rounding moves them.

A server in 16 bits holds each weight rounded, and rounds each activation. The first is reproduced here: the
weights are rounded likewise and used in float32. The second is measured: the folder computes the
same log-probs in that precision itself, and the difference is the yardstick for a server's.
"""

from __future__ import annotations

import gc
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer

from bapo_lightning.system.phases import advance
from bapo_lightning.system.pretrained import load_whole, read_model_config, read_pretrained
from bapo_lightning.tools.probe.adapter import base_of, is_adapter, with_adapter
from bapo_lightning.tools.probe.layout import Numbers, TokenLayout

EXACT = "float32"
# Yardstick for rounding of float32. Above so many parameters float64 takes too much memory, and no
# server computes in float32 either.
WIDER, MOST_IN_FLOAT64 = torch.float64, 2e9
_LAYER = re.compile(r"\.(\d+)\.")


@dataclass
class Weights:
    """A model folder, or the folder of a LoRA adapter with its base model, in memory as float32."""

    path: str
    device: str = "cpu"
    name: str = ""  # in printed lines; "": the path
    base: str | None = None  # base model of an adapter; None: the one that it names
    has_adapter: bool | None = None  # whether an adapter is added; None: if the folder is one
    # Whether a server holds the adapter next to its weights, so that no sum is rounded.
    is_apart: bool = False
    _known: dict[tuple[TokenLayout, str], Numbers] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def __post_init__(self) -> None:
        self.name = self.name or self.path
        is_adapter_folder = is_adapter(Path(self.path))
        self.has_adapter = is_adapter_folder if self.has_adapter is None else self.has_adapter
        self.root = base_of(Path(self.path), self.base) if is_adapter_folder else self.path

    @cached_property
    def config(self) -> Any:
        """Configuration of the language model."""
        return read_model_config(self.root, "FOLDER").get_text_config()

    @cached_property
    def tokenizer(self) -> Any | None:
        """Its tokenizer; None if the folder has none, as with some trainers."""
        for path in dict.fromkeys((self.path, self.root)):
            folder = Path(path)
            if not folder.is_dir() or any(folder.glob("tokenizer*")) or any(folder.glob("vocab*")):
                return read_pretrained(AutoTokenizer, path, "FOLDER")
        return None

    @cached_property
    def model(self) -> Any:
        """The model in float32."""
        return self._load(torch.float32)

    @cached_property
    def vocab_size(self) -> int:
        """Number of tokens that the model knows."""
        return int(self.config.vocab_size)

    def likely_dtypes(self) -> list[str]:
        """Precisions that a server of it may use, the finest first."""
        count = sum(weight.numel() for weight in self.model.parameters())
        return [EXACT] * (count <= MOST_IN_FLOAT64) + ["float16", "bfloat16"]

    @cached_property
    def state(self) -> Mapping[str, Tensor]:
        """Its weights as they are in the folder, by name."""
        return {name: weight.detach().clone() for name, weight in self.model.named_parameters()}

    @cached_property
    def added(self) -> Mapping[str, Tensor]:
        """Parts of the weights that an adapter adds and that are not rounded, by name."""
        if not (self.has_adapter and self.is_apart):
            return {}
        base = self.without_adapter.state
        both = {name: (weight, base[name]) for name, weight in self.state.items() if name in base}
        return {name: weight - before for name, (weight, before) in both.items() if not weight.equal(before)}

    @cached_property
    def apart(self) -> Weights:
        """The same adapter in a server that holds it next to its weights."""
        copied = replace(self, is_apart=True)
        vars(copied)["without_adapter"] = self.without_adapter  # read once
        return copied

    @cached_property
    def without_adapter(self) -> Weights:
        """The base model of an adapter."""
        name = f"the base model of {self.name} without the adapter"
        return replace(self, name=name, has_adapter=False)

    def scores(self, layout: TokenLayout, dtype: str) -> Numbers:
        """Log-probs with the weights rounded to a server's precision, computed in float32."""
        if (layout, dtype) not in self._known:
            self._known[layout, dtype] = self.mixed_scores(layout, dtype, {}, ())
        return self._known[layout, dtype]

    def mixed_scores(
        self, layout: TokenLayout, dtype: str, other: Mapping[str, Tensor], names: Collection[str]
    ) -> Numbers:
        """The same with the weights of these names taken from another folder; a missing weight is zero."""
        with torch.no_grad():
            for name, weight in self.model.named_parameters():
                local = self.state[name]
                source = local if name not in names else other.get(name, torch.zeros((), device=local.device))
                added = self.added.get(name, 0.0) if name not in names else 0.0
                weight.copy_((source - added).to(getattr(torch, dtype)) + added)
        return _scores(self.model, layout)

    def rounding(self, layout: TokenLayout, dtype: str) -> Numbers:
        """How much rounding of activations moves each log-prob, in nats, in a server of `dtype`."""
        model = self._load(WIDER if dtype == EXACT else getattr(torch, dtype))
        scores = _scores(model, layout)
        del model
        gc.collect()
        summed = replace(self, is_apart=False) if self.is_apart else self  # as the model above
        return np.abs(scores - summed.scores(layout, dtype))

    def groups(self) -> list[tuple[str, list[str]]]:
        """Names of its weights by part, as they are computed: before the layers, each layer, the rest."""
        layers = _layer_numbers(list(self.state))
        parts: dict[tuple[int, int], list[str]] = {}
        seen = False
        for name in self.state:
            number = layers.get(name)
            seen = seen or number is not None
            key = (1, number) if number is not None else (2 if seen else 0, 0)
            parts.setdefault(key, []).append(name)
        labels = {0: "embeddings", 2: "the last norm and head"}
        return [(labels.get(part, f"layer {number}"), parts[part, number]) for part, number in sorted(parts)]

    def _load(self, dtype: torch.dtype) -> Any:
        if not self.has_adapter:
            return load_whole(AutoModelForCausalLM, self.root, dtype=dtype).to(self.device).eval()
        model = with_adapter(
            load_whole(AutoModelForCausalLM, self.root, dtype=torch.float32), Path(self.path)
        )
        return model.to(self.device, dtype).eval()  # sums are rounded once


def _layer_numbers(names: list[str]) -> dict[str, int]:
    # The prefix with the most numbers is the layers': experts have theirs within one.
    numbers: dict[str, dict[str, int]] = {}
    for name in names:
        if match := _LAYER.search(name):
            numbers.setdefault(name[: match.start()], {})[name] = int(match[1])
    return max(numbers.values(), key=len, default={})


@torch.no_grad()
def _scores(model: Any, layout: TokenLayout) -> Numbers:
    # One sequence at a time: no padding, which would add its own rounding.
    scores: list[float] = []
    device = next(model.parameters()).device
    for each in layout.sequences:
        ids = torch.tensor([each.token_ids], device=device)
        logits = model(input_ids=ids, use_cache=False).logits[0, :-1]
        logits = logits.to(WIDER if logits.dtype == WIDER else torch.float32)
        logits[: each.prompt_length - 1] /= layout.prompt_temperature
        logits[each.prompt_length - 1 :] /= layout.temperature
        chosen = torch.log_softmax(logits, -1).gather(-1, ids[0, 1:, None])[:, 0]
        scores += chosen[0 if each.has_prompt else each.prompt_length - 1 :].tolist()
        advance()
    return np.array(scores)
