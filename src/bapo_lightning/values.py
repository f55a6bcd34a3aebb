"""Types of option values: what a number may be stands in the signature that takes it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, Literal

from annotated_types import Ge, Gt, Le, Predicate


@dataclass(frozen=True)
class Advice:
    """Metadata of an annotation: what is wrong with a value that it refuses, and what to write instead."""

    text: str


Name = Annotated[
    str,
    Predicate(re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]*").fullmatch),
    Advice("must be letters, digits and . _ + - only, as it names folders, and begin with a letter or digit"),
]
Count = Annotated[int, Ge(1)]
Size = Annotated[int, Ge(1), Le(1_000_000)]  # of what is held in memory or made at once
CountOrZero = Annotated[int, Ge(0)]
Threads = Annotated[int, Ge(1), Le(4096)]  # of one process
Positive = Annotated[float, Gt(0)]
Duration = Annotated[float, Gt(0), Le(1_000_000_000)]  # that a thread can wait, in seconds or minutes
NonNegative = Annotated[float, Ge(0)]
Share = Annotated[float, Gt(0), Le(1)]
TrainDtype = Annotated[
    Literal["float32", "bfloat16"],
    Advice("cannot be trained in (gradients underflow in float16); write one of float32, bfloat16"),
]
Dtype = Literal["float32", "bfloat16", "float16"]  # of weights, caches and computation
EngineDtype = Literal["float32", "bfloat16", "float16", "bf16-mixed"]
