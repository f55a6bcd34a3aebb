"""Rules about `plan`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from bapo_lightning.plan.gpus import GPUS

Config = dict[str, Any]
SHARES = ("usable_share", "mean_response_share", "update_share", "scoring_share", "bandwidth_share")
GIGABYTES = ("overhead_gigabytes", "engine_gigabytes")


def plan_complaints(config: Config) -> Iterator[str]:
    """What is wrong with `plan`."""
    plan = config["plan"]
    if plan["gpu"] not in GPUS:
        yield f"plan.gpu={plan['gpu']} is not known; write one of {', '.join(GPUS)}"
    gpus = plan["gpus"]
    if gpus is not None and not (isinstance(gpus, int) and not isinstance(gpus, bool) and gpus >= 1):
        yield f"plan.gpus={gpus} must be a whole number of at least 1, or null"
    if not isinstance(plan["ignore"], bool):
        yield f"plan.ignore={plan['ignore']} must be true or false"
    for name in SHARES:
        if not (_is_number(plan[name]) and 0 < plan[name] <= 1):
            yield f"plan.{name}={plan[name]} is a share; write a number in (0, 1]"
    for name in GIGABYTES:
        if not (_is_number(plan[name]) and plan[name] >= 0):
            yield f"plan.{name}={plan[name]} must be a number of gigabytes, 0 or more"


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
