"""Values in Hydra's grammar of overrides."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from hydra.core.override_parser.types import Quote, QuotedString

# Texts that Hydra reads as strings without quotes.
_PLAIN = re.compile(r"[A-Za-z_./-][A-Za-z0-9_./-]*|\d+-[a-z]+|\$\{[\w.:]+\}")
_OTHER_TYPES = {"null", "true", "false", "nan", "inf", "-inf"}


def hydra_value(value: Any) -> str:
    """Writes a value of YAML in Hydra's grammar, which reads commas, quotes or `null` in its own way."""
    if value is None:
        return "null"
    if isinstance(value, bool | int | float):
        return str(value).lower()
    if isinstance(value, dict):
        return "{" + ",".join(f"{key}:{hydra_value(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(map(hydra_value, value)) + "]"
    text = str(value)
    if _PLAIN.fullmatch(text) and text.lower() not in _OTHER_TYPES:
        return text
    return QuotedString(text, Quote.double).with_quotes()


def hydra_overrides(values: Mapping[str, Any]) -> tuple[str, ...]:
    """Writes an override for each key."""
    return tuple(f"{key}={hydra_value(value)}" for key, value in values.items())
