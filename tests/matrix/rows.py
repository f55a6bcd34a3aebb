"""A covering array: rows of choices in which every pair of values occurs that the rules allow.

python -m tests.matrix.rows     writes rows.json again, after a choice or a rule is new

Rows that are there get values of a new factor and keep their numbers, and those of choices that are gone are
filled anew; without rows.json all are made anew.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from itertools import combinations, product
from pathlib import Path

from tests.matrix.choices import CONTEXTS, FACTORS, TOGETHER, Choices, overrides, world

FILE = Path(__file__).with_name("rows.json")
Key = tuple[tuple[str, str], ...]


@cache
def refusal(key: Key) -> str | None:
    """Why the rules refuse these choices, whatever others are; None if they do not."""
    reason = None
    for context in CONTEXTS:
        if (reason := _refusal({**context, **dict(key)})) is None:
            break
    return reason


def _refusal(choices: Choices) -> str | None:
    from bapo_lightning.configuration.compose import compose_run
    from bapo_lightning.configuration.validate import validate
    from bapo_lightning.system.errors import ConfigError

    try:
        validate(compose_run([f"experiment={world(choices)}", "debug=rehearsal", *overrides(choices)]))
    except ConfigError as error:
        return "; ".join(error.problems)
    return None


def subsets() -> Iterator[Key]:
    """Every pair of values of two factors, and every three of those that rules read together."""
    for factors in [*combinations(FACTORS, 2), TOGETHER]:
        for values in product(*(FACTORS[factor] for factor in factors)):
            yield tuple(zip(factors, values, strict=True))


def covered(choices: Choices) -> set[Key]:
    """The pairs that occur in a row."""
    return set(combinations(choices.items(), 2))


def make() -> dict[str, list[object]]:
    """Returns the rows, and all refused pairs and threes with their reasons."""
    from covertable import make

    keys = list(subsets())
    with ProcessPoolExecutor() as pool:
        reasons = dict(zip(keys, pool.map(refusal, keys, chunksize=8), strict=True))
    refused = {key: reason for key, reason in reasons.items() if reason is not None}

    def allows(key: Key) -> dict[str, object]:
        return {
            "operator": "fn",
            "requires": [factor for factor, _ in key],
            "evaluate": lambda row: not all(row[factor] == value for factor, value in key),
        }

    values = {factor: list(options) for factor, options in FACTORS.items()}
    present = json.loads(FILE.read_text())["rows"] if FILE.exists() else []
    kept = [{name: own for name, own in row.items() if own in values.get(name, ())} for row in present]
    rows = make(values, constraints=[allows(key) for key in refused], presets=kept)
    rows = [{factor: row[factor] for factor in FACTORS} for row in rows]
    return {
        "rows": rows,
        "refused": [{"choices": dict(key), "reason": text} for key, text in refused.items()],
    }


if __name__ == "__main__":
    made = make()
    FILE.write_text(json.dumps(made, indent=1) + "\n", encoding="utf-8")
    print(f"{len(made['rows'])} rows, {len(made['refused'])} refused")
