"""Types of option values: what a number may be stands in the signature that takes it."""

from __future__ import annotations

from typing import Annotated

from annotated_types import Ge, Gt, Le

Count = Annotated[int, Ge(1)]
CountOrZero = Annotated[int, Ge(0)]
Positive = Annotated[float, Gt(0)]
NonNegative = Annotated[float, Ge(0)]
Share = Annotated[float, Gt(0), Le(1)]
