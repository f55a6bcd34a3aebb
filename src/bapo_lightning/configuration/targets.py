"""What may stand beside a `_target_`: the signature of what it names is the schema."""

from __future__ import annotations

from collections.abc import Mapping
from inspect import Parameter, signature
from typing import Any

from hydra.errors import InstantiationException
from hydra.utils import get_object

HYDRA_KEYS = {"_target_", "_partial_"}
UNREADABLE = (InstantiationException, ImportError, AttributeError, ValueError)


def options_of(target: str) -> Mapping[str, Parameter]:
    """Parameters of what a dotted name means, by name. Raises one of UNREADABLE when there is no such thing,
    or it tells none.
    """
    return signature(get_object(target)).parameters


def foreign_keys(node: Mapping[str, Any], options: Mapping[str, Parameter]) -> set[str]:
    """Keys of a `_target_` node that are no option of it."""
    if any(option.kind is Parameter.VAR_KEYWORD for option in options.values()):
        return set()
    return set(node) - HYDRA_KEYS - set(options)


def without_unset(node: Any) -> Any:
    """A copy without the nulls that a target has no option for: what a base file leaves unset (`dual_clip:
    null`) does not bind the targets that take the place of its own.
    """
    if isinstance(node, list):
        return [without_unset(item) for item in node]
    if not isinstance(node, dict):
        return node
    dropped = {key for key in _foreign(node) if node[key] is None}
    return {key: without_unset(value) for key, value in node.items() if key not in dropped}


def _foreign(node: Mapping[str, Any]) -> set[str]:
    if "_target_" not in node:
        return set()
    try:
        return foreign_keys(node, options_of(node["_target_"]))
    except UNREADABLE:  # whoever makes it says why it cannot be made
        return set()
