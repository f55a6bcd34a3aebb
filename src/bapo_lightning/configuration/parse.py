"""From plain values to a typed section, or sentences about its keys and values. Needs no torch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, TypeVar, get_args, get_type_hints

from pydantic import BaseModel, ValidationError, create_model
from pydantic_core import ErrorDetails

from bapo_lightning.configuration.compose import node_at
from bapo_lightning.configuration.sections import Section
from bapo_lightning.configuration.wording import wrong
from bapo_lightning.system.errors import ConfigError, suggestion

S = TypeVar("S", bound=Section)


def distinct(problems: list[str]) -> list[str]:
    """Each fault once, without faults of the regime's lengths that repeat a fault of the scale."""
    repeated = {f"regime.{text.removeprefix('scale.')}" for text in problems if text.startswith("scale.")}
    return [text for text in dict.fromkeys(problems) if text not in repeated]


def parse(
    section: type[S], plain: Mapping[str, Any], has_open_keys: bool = False
) -> tuple[S | None, list[str]]:
    """The typed object, or what is wrong with the keys and values of all nodes without a `_target_`. With
    `has_open_keys`, missing or null keys are not faults, and the object may be None without a fault.
    """
    try:
        return section.read(plain), []
    except ValidationError as error:
        return None, list(_messages(section, plain, error.errors(), has_open_keys))


def added_node(name: str, options: type[S], plain: dict[str, Any]) -> S:
    """Takes the node that a command adds to a run's configuration out of it, and returns its typed options.
    Raises ConfigError with everything that is wrong with them.
    """
    section = create_model(name, __base__=Section, **{name: (options, ...)})  # type: ignore[call-overload]
    parsed, problems = parse(section, {name: plain.pop(name, {})})
    node: S | None = getattr(parsed, name, None)
    problems += [f"{name}.{text}" for text in node.problems()] if node is not None else []
    if node is None or problems:
        raise ConfigError(problems)
    return node


def _messages(
    section: type[BaseModel], plain: Mapping[str, Any], errors: list[ErrorDetails], has_open_keys: bool
) -> Iterator[str]:
    reported = set()
    for error in errors:
        path, owner, annotation = _locate(section, error["loc"])
        if path in reported or path.startswith("callbacks.alarms"):
            continue
        reported.add(path)
        name, value = path.rpartition(".")[2], node_at(plain, path.split("."))
        if has_open_keys and value is None:
            continue
        if error["type"] == "extra_forbidden":
            parent = path.rpartition(".")[0]
            whose = f" of {parent}" if parent else ""
            yield f"{path} is not an option{whose}; {suggestion(name, sorted(owner.model_fields))}"
        elif error["type"] == "missing":
            yield f"{path} is missing; write {path}=VALUE"
        elif error["type"] == "value_error":
            given = path if isinstance(value, Mapping) else f"{path}={value}"
            yield f"{given} {error['msg'].removeprefix('Value error, ')}"
        else:
            yield f"{path}={value} {wrong(annotation, name, value)}"


def _locate(section: type[BaseModel], loc: tuple[int | str, ...]) -> tuple[str, type[BaseModel], Any]:
    """Dotted key of an error, the model that has its field, and the field's annotation."""
    owner, annotation, keys = section, Any, []
    for part in loc:
        hints = get_type_hints(owner, include_extras=True)
        keys.append(str(part))
        if part not in owner.model_fields:  # unknown, or inside a field that is not a section
            break
        annotation = hints[str(part)]
        inner = [item for item in (annotation, *get_args(annotation)) if _is_model(item)]
        if not inner:
            values = get_args(annotation)
            if len(loc) > len(keys) and getattr(annotation, "__origin__", None) is dict:
                keys.append(str(loc[len(keys)]))
                annotation = values[1]
            break
        owner = inner[0]
    return ".".join(keys), owner, annotation


def _is_model(item: Any) -> bool:
    return isinstance(item, type) and issubclass(item, BaseModel)
