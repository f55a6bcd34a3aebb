"""Finds what would stop any of several runs at its start, before the first begins."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from bapo_lightning.errors import ConfigError, MachineError
from bapo_lightning.phases import advance, phase

KINDS = ("GPUs", "memory", "model")  # of what a machine lacks, as one run is told it


def check_runs(configs: Collection[dict[str, Any]]) -> None:
    """Raises ConfigError with what is wrong with the runs, or else MachineError with what this machine lacks
    for them; each problem once.
    """
    with phase("loading libraries"):
        from bapo_lightning.configuration.machine import check_machine
        from bapo_lightning.configuration.validate import validate

    found: dict[str, None] = {}
    lacking: list[MachineError] = []
    with phase("checking runs", len(configs)):
        for config in configs:
            try:
                check_machine(validate(config))
            except MachineError as error:
                lacking.append(error)
            except ConfigError as error:
                found |= dict.fromkeys(error.problems)
            advance()
    if found:
        raise ConfigError(list(found))
    if lacking:
        raise together(lacking)


def together(errors: Sequence[MachineError]) -> MachineError:
    """One error for several runs, with every line once and in the order of one run's."""
    needs = dict.fromkeys(line for error in errors for line in error.problems)
    advice = dict.fromkeys(line for error in errors for line in error.advice)
    names = dict.fromkeys(error.name for error in errors)
    in_order = sorted(needs, key=lambda line: KINDS.index(line.partition(":")[0]))
    return MachineError(", ".join(names), in_order, list(advice))
