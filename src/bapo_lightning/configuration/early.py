"""What a configuration shows to be wrong by itself, told in a second: torch is not imported."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from bapo_lightning.configuration.evaluation_config import EvaluationConfig
from bapo_lightning.configuration.parse import distinct, parse
from bapo_lightning.configuration.sections import RunSections
from bapo_lightning.configuration.targets import TARGET, option_problems, targets_within
from bapo_lightning.configuration.trainer_flags import without_refused
from bapo_lightning.configuration.written import misspelt, written
from bapo_lightning.errors import ConfigError

ALARM = "bapo_lightning.callbacks.alarm.Alarm"
Kind = type[RunSections | EvaluationConfig]


def refuse_early(plain: Mapping[str, Any], kind: Kind = RunSections, with_rules: bool = True) -> None:
    """Checks keys, types and ranges of a resolved configuration as far as the files say them that `written`
    reads; `validate` checks all. Keys of an evaluation that are null are open.

    Raises:
        ConfigError: with everything that is found.
    """
    if found := early_problems(plain, kind, with_rules):
        raise ConfigError(found)


def early_problems(plain: Mapping[str, Any], kind: Kind = RunSections, with_rules: bool = True) -> list[str]:
    """The texts, each of which `validate` has as well; those of rules between keys only where they are asked
    for.
    """
    config, found = parse(kind, plain, has_open_keys=kind is EvaluationConfig)
    for path, target in targets_within({name: without_refused(name, node) for name, node in plain.items()}):
        if remedy := misspelt(target.name):
            found.append(f"{path}.{TARGET}={target.name} cannot be imported; {remedy}")
        found += _of_options(target.name, target.name, target.node, path)
    alarms = (plain.get("callbacks") or {}).get("alarms")
    for name, node in alarms.items() if isinstance(alarms, Mapping) else ():
        if isinstance(node, Mapping):
            found += _of_options(ALARM, "an alarm", node, f"callbacks.alarms.{name}")
    if with_rules and isinstance(config, RunSections):
        found += config.problems()
    return distinct(found)


def _of_options(target: str, name: str, node: Mapping[str, Any], path: str) -> Iterator[str]:
    """Null and `auto` may stand for what the machine decides."""
    options = {key: value for key, value in node.items() if value not in (None, "auto") and key != TARGET}
    if (called := written(target)) is not None:
        yield from option_problems(called, name, options, path)
