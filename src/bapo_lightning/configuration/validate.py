"""From a composed configuration to a `RunConfig`: every fault with its key and its remedy."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal, TypeVar, get_args, get_type_hints

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from bapo_lightning.configuration.compose import node_at
from bapo_lightning.configuration.evaluation_config import EvaluationConfig
from bapo_lightning.configuration.machine_rules import machine_problems
from bapo_lightning.configuration.precision import settled
from bapo_lightning.configuration.rank_rules import engine_problems, rank_problems
from bapo_lightning.configuration.run_config import RunConfig, alarm_problems
from bapo_lightning.configuration.sections import Composed, Section
from bapo_lightning.configuration.targets import target_problems
from bapo_lightning.configuration.trainer_flags import REFUSED_FLAGS, trainer_problems
from bapo_lightning.configuration.wording import accepted
from bapo_lightning.errors import ConfigError, taken

S = TypeVar("S", bound=Section)
C = TypeVar("C", bound=Composed)
# Rules look into the targets of these.
RULES_READ = {"regime", "rollout", "ranks", "trainer", "strategy", "optimizer", "environment"}
Scope = Literal["data", "run", "ranks", "machine"]


def validate(plain: dict[str, Any], scope: Scope = "machine") -> RunConfig:
    """The typed configuration of a resolved one. Reads no weights and changes nothing. `check_machine` says
    whether there are GPUs, memory and a model for it.

    The `scope` is what it is meant for: reading problems only, a run on any machine, its ranks as well, or a
    run on this machine.

    Raises:
        ConfigError: with everything that is wrong.
    """
    plain = settled(plain, for_gpus=scope in ("run", "ranks"))
    config, found, unsound = _parsed(RunConfig, plain)
    found += alarm_problems((plain.get("callbacks") or {}).get("alarms", {}), "callbacks.alarms")
    if config is not None and not unsound & RULES_READ:
        found += _problems_within(scope, config)
    return _sound(config, found, plain)


def validate_evaluation(plain: dict[str, Any]) -> EvaluationConfig:
    """The typed configuration of an evaluation. Raises ConfigError with everything that is wrong."""
    plain = settled(plain)
    config, found, _ = _parsed(EvaluationConfig, plain)
    return _sound(config, [*found, *(config.problems() if config is not None else ())], plain)


def _problems_within(scope: Scope, config: RunConfig) -> Iterator[str]:
    if scope == "data":
        yield from (f"data.{text}" for text in config.data.problems())
        return
    yield from config.problems()
    yield from engine_problems(config)
    # Numbers of ranks that are no numbers were named already.
    if scope == "run" or list(trainer_problems(config.trainer)):
        return
    yield from rank_problems(config)
    if scope == "machine":
        yield from machine_problems(config)


def _sound(config: C | None, found: list[str], plain: dict[str, Any]) -> C:
    # Lengths of the regime follow those of the scale.
    repeated = {f"regime.{text.removeprefix('scale.')}" for text in found if text.startswith("scale.")}
    found = [text for text in dict.fromkeys(found) if text not in repeated]
    if config is None or found:
        raise ConfigError(found)
    config._plain = plain
    return config


def _parsed(section: type[S], plain: dict[str, Any]) -> tuple[S | None, list[str], set[str]]:
    config, found = parse(section, plain)
    by_section = {name: list(target_problems(_checkable(name, node), name)) for name, node in plain.items()}
    found += [text for texts in by_section.values() for text in texts]
    return config, found, {name for name, texts in by_section.items() if texts}


def _checkable(name: str, node: Any) -> Any:
    if name != "trainer" or not isinstance(node, Mapping):
        return node
    return {key: value for key, value in node.items() if key not in REFUSED_FLAGS}


def parse(section: type[S], plain: Mapping[str, Any]) -> tuple[S | None, list[str]]:
    """The typed object, or what is wrong with the keys and values of those nodes that are no `_target_`."""
    try:
        return section.read(plain), []
    except ValidationError as error:
        return None, list(_messages(section, plain, error.errors()))


def _messages(
    section: type[BaseModel], plain: Mapping[str, Any], errors: list[ErrorDetails]
) -> Iterator[str]:
    told = set()
    for error in errors:
        path, owner, annotation = _locate(section, error["loc"])
        if path in told or path.startswith("callbacks.alarms"):
            continue
        told.add(path)
        name, value = path.rpartition(".")[2], node_at(plain, path.split("."))
        if error["type"] == "extra_forbidden":
            parent = path.rpartition(".")[0]
            whose = f" of {parent}" if parent else ""
            yield f"{path} is not an option{whose}; {taken(name, sorted(owner.model_fields))}"
        elif error["type"] == "missing":
            yield f"{path} is missing; write {path}=VALUE"
        elif error["type"] == "value_error":
            given = path if isinstance(value, Mapping) else f"{path}={value}"
            yield f"{given} {error['msg'].removeprefix('Value error, ')}"
        else:
            yield f"{path}={value} {accepted(annotation, name)}"


def _locate(section: type[BaseModel], loc: tuple[int | str, ...]) -> tuple[str, type[BaseModel], Any]:
    """Dotted key of an error, the model whose field it is, and the field's annotation."""
    owner, annotation, keys = section, Any, []
    for part in loc:
        hints = get_type_hints(owner, include_extras=True)
        keys.append(str(part))
        if part not in owner.model_fields:  # unknown, or inside of a field that is no section
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
