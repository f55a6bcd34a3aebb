"""From a composed configuration to a `RunConfig`: every fault with its key and its remedy."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal, TypeVar

from bapo_lightning.configuration.evaluation_config import EvaluationConfig
from bapo_lightning.configuration.machine_rules import machine_problems
from bapo_lightning.configuration.parse import S, distinct, parse
from bapo_lightning.configuration.precision import settled
from bapo_lightning.configuration.rank_rules import engine_problems, rank_problems, sampling_problems
from bapo_lightning.configuration.run_config import RunConfig, alarm_problems
from bapo_lightning.configuration.sections import Composed
from bapo_lightning.configuration.targets import target_problems
from bapo_lightning.configuration.trainer_flags import trainer_problems, without_refused
from bapo_lightning.system.errors import ConfigError

C = TypeVar("C", bound=Composed)
# Nodes whose targets the rules inspect.
RULES_READ = {"regime", "rollout", "ranks", "trainer", "strategy", "optimizer", "environment"}
Scope = Literal["data", "run", "ranks", "machine"]


def validate(plain: dict[str, Any], scope: Scope = "machine") -> RunConfig:
    """The typed configuration of a resolved one. Reads no weights and changes nothing. `check_machine` says
    whether GPUs, memory and a model are available for it.

    The `scope` is the intended use: reading problems only, a run on any machine, its ranks as well, or a
    run on this machine. Raises ConfigError with everything that is wrong.
    """
    plain = settled(plain, for_gpus=scope in ("run", "ranks"))
    config, problems, unsound = _parsed(RunConfig, plain)
    problems += alarm_problems((plain.get("callbacks") or {}).get("alarms", {}), "callbacks.alarms")
    if config is not None and not unsound & RULES_READ:
        problems += _problems_within(scope, config)
    return _sound(config, problems, plain)


def validate_evaluation(plain: dict[str, Any]) -> EvaluationConfig:
    """The typed configuration of an evaluation. Raises ConfigError with everything that is wrong."""
    plain = settled(plain)
    config, problems, _ = _parsed(EvaluationConfig, plain)
    if config is not None:
        problems += [*config.problems(), *sampling_problems(config.rollout)]
    return _sound(config, problems, plain)


def _problems_within(scope: Scope, config: RunConfig) -> Iterator[str]:
    if scope == "data":
        yield from (f"data.{text}" for text in config.data.problems())
        return
    yield from config.problems()
    yield from engine_problems(config)
    # Numbers of ranks that are not numbers were reported already.
    if scope == "run" or [*trainer_problems(config.trainer), *config.lightning_problems()]:
        return
    yield from rank_problems(config)
    if scope == "machine":
        yield from machine_problems(config)


def _sound(config: C | None, problems: list[str], plain: dict[str, Any]) -> C:
    problems = distinct(problems)
    if config is None or problems:
        raise ConfigError(problems)
    config._plain = plain
    return config


def _parsed(section: type[S], plain: dict[str, Any]) -> tuple[S | None, list[str], set[str]]:
    config, problems = parse(section, plain)
    by_section = {
        name: list(target_problems(without_refused(name, node), name)) for name, node in plain.items()
    }
    problems += [text for texts in by_section.values() for text in texts]
    return config, problems, {name for name, texts in by_section.items() if texts}
