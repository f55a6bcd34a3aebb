"""Names and order of settings, conditions and the reference."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from bapo_lightning.report.style import algorithm_rank
from bapo_lightning.system.errors import DataError, suggestion
from bapo_lightning.system.run_folder.config_keys import (
    is_listed,
    is_setting,
    leaves,
    short_names,
    value_text,
)
from bapo_lightning.tools.comparison.runs import Run, read

_NUMBER = re.compile(r"-?\d+(\.\d+)?(e-?\d+)?")


def collect(folders: Iterable[str | Path], curves: Sequence[str] | None = None) -> list[Run]:
    """Reads runs with the curves of these metrics (None: all that are compared) and names their settings.

    If two finished runs have the same setting, condition and seed, the later one counts.
    """
    runs = [read(Path(folder), curves) for folder in folders]
    finished = [run for run in runs if run.problem is None]
    name_settings(finished)
    usable: dict[tuple[str, str, int], Run] = {}
    for run in sorted(finished, key=lambda run: (str(run.summary["started_at"]), run.path)):
        identity = (run.setting, run.condition, run.seed)
        if identity in usable:
            usable[identity].problem = f"replaced by the later run {Path(run.path).name}"
        usable[identity] = run
    return runs


def name_settings(runs: Sequence[Run]) -> None:
    """Gives every run its `setting`: algorithm and values of `setting_keys`, in which its runs differ.

    Keys that only affect speed, logging or length, the seed, and keys named by the condition are left out.
    """
    for algorithm in {run.algorithm for run in runs}:
        peers = [run for run in runs if run.algorithm == algorithm]
        varying = _varying_keys(peers)
        short = short_names(varying)
        for run in peers:
            values = dict(leaves(run.config))
            label = [f"{short[key]}={value_text(values[key])}" for key in varying if key in values]
            run.setting = " ".join([algorithm, *label])
            run.setting_keys = varying


def settings_in_order(usable: Sequence[Run]) -> dict[str, str]:
    """Setting -> its algorithm: from the baseline to BAPO, the settings of an algorithm by their values."""
    algorithms = {run.setting: run.algorithm for run in usable}
    return dict(sorted(algorithms.items(), key=lambda pair: (algorithm_rank(pair[1]), _natural(pair[0]))))


def conditions_in_order(usable: Sequence[Run]) -> list[str]:
    """All conditions: the least stale first; at equal staleness the largest token budget first."""
    keys = {
        run.condition: (run.staleness, -(run.config.get("regime", {}).get("partial_tokens") or 10**9))
        for run in usable
    }
    return sorted(keys, key=keys.__getitem__)


def choose_reference(groups: Mapping[str, str], wanted: str | None) -> str:
    """Name of the reference for differences: `wanted`, or the only name in that group; None: the first one.

    `groups` maps the compared names to their groups, such as the algorithm of a setting.
    Raises DataError if nothing has the name, or several names are in the group.
    """
    if wanted is None or wanted in groups:
        return wanted or next(iter(groups))
    of_group = [name for name, group in groups.items() if group == wanted]
    if len(of_group) == 1:
        return of_group[0]
    if of_group:
        raise DataError(f"--reference {wanted}: there are several; write one of {', '.join(of_group)}")
    names = list(dict.fromkeys([*groups, *groups.values()]))
    raise DataError(f"--reference {wanted}: nothing finished has this name; {suggestion(str(wanted), names)}")


def differing_keys(usable: Sequence[Run], order: Sequence[str]) -> dict[str, dict[str, str]]:
    """Keys in which settings differ -> value by setting, several ones joined, an absent one "-"."""
    tables = {
        setting: [dict(leaves(run.config)) for run in usable if run.setting == setting] for setting in order
    }
    keys = dict.fromkeys(
        key for group in tables.values() for table in group for key in table if is_listed(key)
    )
    differing = {}
    for key in keys:
        values = {
            setting: dict.fromkeys(_text(table, key, "-") for table in group)
            for setting, group in tables.items()
        }
        texts = {setting: ", ".join(texts_of) for setting, texts_of in values.items()}
        if len(set(texts.values())) > 1 or any(len(texts_of) > 1 for texts_of in values.values()):
            differing[key] = texts
    return differing


def _varying_keys(peers: Sequence[Run]) -> list[str]:
    tables: list[dict[str, Any]] = [dict(leaves(run.config)) for run in peers]
    keys = list(dict.fromkeys(key for table in tables for key in table if is_setting(key)))
    first_keys: dict[tuple[str, ...], str] = {}
    for key in sorted(keys, key=lambda key: key.count(".")):
        values = tuple(_text(table, key, absent="") for table in tables)
        if len(set(values)) > 1 and not _follows(values, peers):
            first_keys.setdefault(values, key)
    return [key for key in keys if key in first_keys.values()]


def _text(table: dict[str, Any], key: str, absent: str) -> str:
    return value_text(table[key]) if key in table else absent


def _follows(values: Sequence[str], peers: Sequence[Run]) -> bool:
    """Whether the values follow from the seed, or are fixed by the condition of a run."""
    of_seed = all(value == str(run.seed) for value, run in zip(values, peers, strict=True))
    by_condition = {(run.condition, value) for value, run in zip(values, peers, strict=True)}
    return of_seed or len(by_condition) == len({run.condition for run in peers})


def _natural(text: str) -> list[tuple[float, str]]:
    return [
        (float(part), "") if _NUMBER.fullmatch(part) else (math.inf, part) for part in re.split(r"[ =]", text)
    ]
