"""Rules for alarms and the watchdog. Each complaint names the key and what to write instead."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import fields
from inspect import signature
from typing import Any, get_args

from bapo_lightning.callbacks.alarm import OFF, Action, Alarm, Spike

Config = dict[str, Any]
OPTIONS = tuple(name for name in signature(Alarm).parameters if name != "name")
SPIKE_OPTIONS = tuple(field.name for field in fields(Spike))
EXAMPLE = "{metric: train/reward, below: 0.1}"
SPIKE_EXAMPLE = "{factor: 50, window: 50}"


def alarm_complaints(callbacks: Config) -> Iterator[str]:
    """Everything that is wrong with the alarms and the watchdog."""
    minutes = callbacks["watchdog_minutes"]
    if not (is_number(minutes) and minutes >= 0):
        yield (
            f"callbacks.watchdog_minutes={minutes} must be a number of minutes; write e.g. 20, or 0 for no "
            "watchdog"
        )
    alarms = callbacks["alarms"]
    if not isinstance(alarms, dict):
        yield f"callbacks.alarms={alarms} must map names to alarms; write e.g. {{reward: {EXAMPLE}}}"
        return
    for name, node in alarms.items():
        key = f"callbacks.alarms.{name}"
        if not isinstance(node, dict):
            yield f"{key}={node} is no alarm; write e.g. {EXAMPLE}, or {key}.action=off"
        elif unknown := sorted(set(node) - set(OPTIONS)):
            yield f"{key}.{unknown[0]} is not an option of an alarm; write one of {', '.join(OPTIONS)}"
        else:
            yield from list(_option_complaints(node, key)) or _threshold_complaints(node, key)


def is_number(value: Any) -> bool:
    """A finite number, and no truth value."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _option_complaints(node: Config, key: str) -> Iterator[str]:
    """Each option by itself."""
    metric, action, patience = node.get("metric"), node.get("action", "warn"), node.get("patience", 1)
    if not (isinstance(metric, str) and metric):
        yield f"{key}.metric={metric} must be the name of a metric; write e.g. train/reward"
    if action not in OFF and action not in get_args(Action):
        yield f"{key}.action={action} is none of its values; write one of {', '.join(get_args(Action))}, off"
    if not (isinstance(patience, int) and not isinstance(patience, bool) and patience >= 1):
        yield (
            f"{key}.patience={patience} must be a whole number of at least 1: so many measured updates in a "
            "row"
        )
    for side in ("below", "above"):
        value = node.get(side)
        if value is not None and not is_number(value):
            yield f"{key}.{side}={value} must be a number, or null for no threshold"
    if node.get("spike") is not None:
        yield from _spike_complaints(node["spike"], f"{key}.spike")


def _spike_complaints(spike: Any, key: str) -> Iterator[str]:
    if not isinstance(spike, dict):
        yield f"{key}={spike} must be e.g. {SPIKE_EXAMPLE}, or null for no threshold"
        return
    if unknown := sorted(set(spike) - set(SPIKE_OPTIONS)):
        yield f"{key}.{unknown[0]} is not an option of a spike; write e.g. {SPIKE_EXAMPLE}"
    factor: Any = spike.get("factor")
    window = spike.get("window", Spike.window)
    if not (is_number(factor) and factor > 1):
        yield f"{key}.factor={factor} must be a number above 1, times the usual value; write e.g. 50"
    if not (isinstance(window, int) and not isinstance(window, bool) and window >= 1):
        yield (
            f"{key}.window={window} must be a whole number of at least 1: values that tell what is usual; "
            "write e.g. 50"
        )


def _threshold_complaints(node: Config, key: str) -> Iterator[str]:
    """Thresholds together: an alarm that is not off can go off, and can go off again."""
    below, above = node.get("below"), node.get("above")
    if node.get("action") in OFF:
        return
    if below is None and above is None and node.get("spike") is None:
        yield f"{key} has no threshold; write {key}.below, {key}.above or {key}.spike, or {key}.action=off"
    elif below is not None and above is not None and below >= above:
        yield (
            f"{key}.below={below} is not below {key}.above={above}, and every value is beyond; write a "
            "smaller below, or one null"
        )
    if node["metric"] == "mismatch/abs_logp_diff_mean" and above is not None and above <= 0:
        yield f"{key}.above={above}: no two computations agree to the last bit; write e.g. 0.1"
