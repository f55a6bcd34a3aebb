"""Answers to overrides that Hydra's grammar cannot parse: the probable meaning, in valid form."""

from __future__ import annotations

import re

# A comma between two overrides, or after the last.
_NEXT = re.compile(r",\s*(?=[+~]?[A-Za-z][\w./@]*=)|,\s*$")


def unreadable(override: str) -> str:
    """A sentence about an override that cannot be parsed.

    >>> unreadable("--seed=3")
    '--seed=3 cannot be read; write seed=3'
    """
    key, has_value, value = override.partition("=")
    if override.startswith("-") and (option := override.lstrip("-")):
        remedy = f"write {option if has_value else f'{option}=VALUE'}"
    elif not has_value and (pair := re.fullmatch(r"([+~]?[\w./@]+):\s*(.+)", override)):
        remedy = f"write {pair[1]}={pair[2]}"
    elif not has_value:
        remedy = f"write {key}=VALUE, without spaces around the ="
    elif _NEXT.search(value):
        remedy = f"write spaces between overrides: {_NEXT.sub(' ', override).strip()}"
    else:
        remedy = f"""put the value in quotes: '{key}="{value}"'"""
    return f"{override} cannot be read; {remedy}"


def several_values(override: str) -> str:
    """A sentence about `key=a,b` for a key that takes one value."""
    key, _, values = override.partition("=")
    return (
        f"{override} names several values; for a run of each write -m {override} (on the command line), "
        f"for a list {key}=[{values}]"
    )
