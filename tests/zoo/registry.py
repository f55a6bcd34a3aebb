"""The references of all algorithms: those of every file references_*.py beside this one."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from pathlib import Path

from tests.zoo.reference import Reference


@cache
def references() -> dict[str, Reference]:
    """Returns the reference of each algorithm, by the name of its file in conf/algorithm.

    Raises:
        ValueError: two files have a reference of the same algorithm.
    """
    found: dict[str, Reference] = {}
    for path in sorted(Path(__file__).parent.glob("references_*.py")):
        own = import_module(f"tests.zoo.{path.stem}").REFERENCES
        if twice := sorted(found.keys() & own.keys()):
            raise ValueError(f"{path.name} has references that another file has: {', '.join(twice)}")
        found |= own
    return found
