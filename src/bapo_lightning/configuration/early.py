"""Finds mistakes in the keys and types of a configuration within a second, without importing torch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from bapo_lightning.configuration.evaluation_config import EvaluationConfig
from bapo_lightning.configuration.parse import distinct, parse
from bapo_lightning.configuration.sections import RunSections
from bapo_lightning.data.problems.formats import place_fault
from bapo_lightning.modules.policy.folder import PACKAGE_PREFIX, model_folder_problems
from bapo_lightning.system.errors import ConfigError

Kind = type[RunSections | EvaluationConfig]


def refuse_early(plain: Mapping[str, Any], kind: Kind = RunSections, with_rules: bool = True) -> None:
    """Raises ConfigError with everything wrong with keys, types and ranges of a resolved configuration;
    `validate` also imports classes and checks their options. Null keys of an evaluation are open.
    """
    if problems := early_problems(plain, kind, with_rules):
        raise ConfigError(problems)


def refuse_missing_files(plain: Mapping[str, Any]) -> None:
    """Looks for the tables and the model folder that a configuration names, before libraries are loaded.
    Names on the hub and patterns are left to the code that reads them. Raises ConfigError with every file
    that is missing, and every table of an unknown type.
    """
    if problems := [*_table_problems(plain.get("data")), *_model_problems(plain.get("model"))]:
        raise ConfigError(problems)


def _table_problems(node: Any, key: str = "data") -> Iterator[str]:
    for name, value in node.items() if isinstance(node, Mapping) else ():
        yield from _table_problems(value, f"{key}.{name}")
        if name == "path" and isinstance(value, str) and (fault := place_fault(value)):
            yield f"{key}.path={value}{fault}"


def _model_problems(node: Any) -> Iterator[str]:
    path, made_by = (node.get("path"), node.get("made_by")) if isinstance(node, Mapping) else (None, None)
    if isinstance(path, str) and path and not path.startswith(PACKAGE_PREFIX) and not Path(path).exists():
        yield from model_folder_problems(path, made_by)


def early_problems(plain: Mapping[str, Any], kind: Kind = RunSections, with_rules: bool = True) -> list[str]:
    """The texts, all of which `validate` reports as well; `with_rules` adds rules between keys."""
    config, problems = parse(kind, plain, has_open_keys=kind is EvaluationConfig)
    if with_rules and isinstance(config, RunSections):
        problems += config.problems()
    return distinct(problems)
