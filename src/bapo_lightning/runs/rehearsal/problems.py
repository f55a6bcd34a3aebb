"""Problems for a rehearsal, in the columns of the table that an experiment reads from the hub.

The problems are the package's own. A random model meets their answers, 1 and 2, often enough by chance for
groups with different rewards.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from bapo_lightning.configuration.targets import TARGET
from bapo_lightning.data.problems.prompts import PLACEHOLDER

SHIPPED = Path(__file__).with_name("problems.jsonl")
TABLE = "bapo_lightning.data.problems.table.problem_table"
HELD_OUT = 8  # of the shipped problems, the last ones: validation asks others than training
DIFFICULTY = 8  # of every problem
# Layouts of an answer's cell (`data.problems.cells`).
FORMS = {
    "text": "{}",
    "behind_marker": "So it is. {marker} {}",
    "last_box": "It is \\boxed{{{}}}.",
    "json_list": '["{}"]',
}


def shipped_problems() -> list[dict[str, str]]:
    """Returns the problems that ship, each with `problem` and `answer`."""
    return [json.loads(line) for line in SHIPPED.read_text(encoding="utf-8").splitlines()]


def tables(node: Any, key: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yields the nodes that read a table, at and below `node`, by their dotted keys."""
    if not isinstance(node, Mapping):
        return
    if node.get(TARGET) == TABLE:
        yield key, node
        return
    for name, inner in node.items():
        yield from tables(inner, f"{key}.{name}")


def write_table(node: Mapping[str, Any], is_training: bool, file: Path) -> list[str]:
    """Writes shipped problems in a table's columns; returns what to override below its key.

    Args:
        node: of the table, resolved.
        is_training: of the training problems, or of a validation set.
        file: .jsonl file to write.
    """
    problems = shipped_problems()
    if node["part"] is None:  # else a hash of the text tells the parts of one table apart
        problems = problems[:-HELD_OUT] if is_training else problems[-HELD_OUT:]
    rows = [
        _row(each["problem"], each["answer"], number, node["mapping"]) for number, each in enumerate(problems)
    ]
    file.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    return [f"path={file}", "any_size=true", "config=null", "revision=null", "files=null"]


def _row(problem: str, answer: str, number: int, mapping: Mapping[str, Any]) -> dict[str, Any]:
    """One row, from whose columns the mapping reads the problem and the answer."""
    wrapper, form = mapping["wrapper"] or PLACEHOLDER, FORMS[mapping["answer_form"]]
    cells = {
        "problem": wrapper.replace(PLACEHOLDER, problem),
        "answer": form.format(answer, marker=mapping["answer_marker"]),
        "id": str(number),
        "source": "rehearsal",
        "difficulty": DIFFICULTY,
    }
    row: dict[str, Any] = {}
    for name, cell in cells.items():
        if mapping[name] is not None:
            _set(row, mapping[name], cell)
    for path in mapping["keep"]:
        _set(row, path, "")
    return row


def _set(row: dict[str, Any], path: str, cell: Any) -> None:
    *parents, last = path.split(".")
    for name in parents:
        row = row.setdefault(name, {})
    row[last] = cell
