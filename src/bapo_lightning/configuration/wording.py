"""Describes in words the values that a type annotation accepts, and checks a plain value against it."""

from __future__ import annotations

import json
import types
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from math import isfinite
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt
from pydantic import (
    ConfigDict,
    PydanticSchemaGenerationError,
    PydanticUserError,
    TypeAdapter,
    ValidationError,
)
from pydantic_core import SchemaError

from bapo_lightning.system.values import Advice

UNITS = ("seconds", "minutes", "gigabytes", "megabytes")


def value_problem(annotation: Any, name: str, value: Any) -> str | None:
    """Error text for the plain `value` of the option `name`; None if its annotation accepts it or cannot be
    checked, such as a class.
    """
    try:
        adapter = _adapter(annotation)
    except TypeError:  # not hashable
        return None
    if adapter is None:
        return None
    text: str | bytes = json.dumps(value)
    if isinstance(value, Mapping):  # whose texts are checked separately: JSON has no halves of a character
        text = json.dumps(value, ensure_ascii=False).encode("utf-8", "replace")
    try:
        adapter.validate_json(text, strict=True)
    except ValidationError:
        if isinstance(value, float) and not isfinite(value) and _takes_numbers_and_a_class(annotation):
            return None  # torch's `float | Tensor` takes it; the option's owner reports what is wrong
        return wrong(annotation, name, value)
    return None


def wrong(annotation: Any, name: str, value: Any) -> str:
    """Error text for a `value` of the option `name` that its annotation refuses."""
    adapter = _adapter(annotation)
    quotes = None if adapter is None else _quotes_problem(adapter, value)
    return _item_problem(annotation, name, value) or quotes or accepted(annotation, name)


def _item_problem(annotation: Any, name: str, value: Any) -> str | None:
    """Error text for the first wrong item of a list; None if something else is wrong."""
    if not isinstance(value, Sequence) or isinstance(value, str):
        return None
    lists = [member for member in flattened(annotation)[0] if get_origin(member) in (list, Sequence)]
    for of_item in [get_args(member)[0] for member in lists if get_args(member)]:
        for item in value:
            if problem := value_problem(of_item, name, item):
                return f"has the item {_plain(item)}, which {problem}"
    return None


def _quotes_problem(adapter: TypeAdapter[Any], value: Any) -> str | None:
    """Error text for a value that has too many or too few quotes; None if something else is wrong."""
    with suppress(ValueError, RecursionError):  # ValidationError is a ValueError
        if isinstance(value, str) and not isinstance(json.loads(value), str):
            adapter.validate_json(value, strict=True)
            return "is a text; write it without quotes"
        if isinstance(value, bool | int | float):
            adapter.validate_json(json.dumps(written := json.dumps(value)), strict=True)
            kind = "true or false" if isinstance(value, bool) else "a number"
            return f"is {kind}; for a text write \"'{written}'\", with both pairs of quotes"
    return None


def _plain(value: Any) -> str:
    return value if isinstance(value, str) and value else json.dumps(value)


def accepted(annotation: Any, name: str) -> str:
    """The end of a sentence that begins with `name=value`: what a value of this annotation must be."""
    members, metadata = flattened(annotation)
    advice = [item.text for item in metadata if isinstance(item, Advice)]
    if advice:
        return advice[0]
    nullable = type(None) in members
    members = [member for member in members if member is not type(None)]
    choices = [choice for member in members if get_origin(member) is Literal for choice in get_args(member)]
    if choices and all(get_origin(member) is Literal for member in members):
        listed = ", ".join(dict.fromkeys(map(str, choices)))
        return f"is none of its values; write one of {listed}{', or null' if nullable else ''}"
    words = " or ".join(dict.fromkeys(_word(member, metadata, name) for member in members))
    return f"must be {words}{', or null' if nullable else ''}"


def _takes_numbers_and_a_class(annotation: Any) -> bool:
    members = {*flattened(annotation)[0]} - {bool, int, str, type(None)}
    return float in members and any(isinstance(member, type) for member in members - {float})


@lru_cache(maxsize=1024)
def _adapter(annotation: Any) -> TypeAdapter[Any] | None:
    # No plain value is an instance of a class. Dataclasses have their own configuration.
    for config in (ConfigDict(allow_inf_nan=False, arbitrary_types_allowed=True), None):
        try:
            return TypeAdapter(annotation, config=config)
        except (PydanticSchemaGenerationError, SchemaError):  # a protocol that isinstance does not take
            return None
        except (PydanticUserError, NameError):
            continue
    return None


def flattened(annotation: Any) -> tuple[list[Any], list[Any]]:
    """Members of a union, nested ones included, and all metadata of `Annotated`."""
    origin = get_origin(annotation)
    if origin is Annotated:
        inner, *metadata = get_args(annotation)
        members, more = flattened(inner)
        return members, [*metadata, *more]
    if origin in (Union, types.UnionType):
        members, metadata = [], []
        for member in get_args(annotation):
            nested, more = flattened(member)
            members += nested
            metadata += more
        return members, metadata
    return [annotation], []


def _word(member: Any, metadata: list[Any], name: str) -> str:
    unit = next((f" of {unit}" for unit in UNITS if name.endswith(unit)), "")
    if member is bool:
        return "true or false"
    if member in (int, float):
        return _number(member, metadata, unit)
    if member is str:
        return "text"
    if get_origin(member) is Literal:
        return "one of " + ", ".join(map(str, get_args(member)))
    if get_origin(member) is Callable:
        return "a class or function, {_target_: PACKAGE.NAME}"
    if get_origin(member) is tuple and Ellipsis not in get_args(member):
        return f"a list of {len(get_args(member))} values"
    if get_origin(member) in (list, tuple, Sequence):
        return "a list"
    return "a mapping" if get_origin(member) in (dict, Mapping) or isinstance(member, type) else str(member)


def _number(kind: type, metadata: list[Any], unit: str) -> str:
    noun = "a whole number" if kind is int else "a number"
    least = next((item.ge for item in metadata if isinstance(item, Ge)), None)
    above = next((item.gt for item in metadata if isinstance(item, Gt)), None)
    most: Any = next((item.le for item in metadata if isinstance(item, Le)), None)
    below = next((item.lt for item in metadata if isinstance(item, Lt)), None)
    if above == 0 and most is not None and most > 1:
        return f"{noun.replace('a ', 'a positive ', 1)}{unit}, at most {most}"
    if most is not None or below is not None:
        opening = f"({above}" if above is not None else f"[{least}"
        return f"{noun}{unit} in {opening}, {f'{most}]' if most is not None else f'{below})'}"
    if above == 0:
        return noun.replace("a ", "a positive ", 1) + unit
    if above is not None:
        return f"{noun}{unit} above {above}"
    if least is None:
        return noun + unit
    return f"{noun}{unit}, at least {least}" if unit else f"{noun} of at least {least}"
