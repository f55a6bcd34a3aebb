"""The map: counts of verdicts in map.md, every cell in map.csv."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from bapo_lightning.report.markdown import markdown_table
from bapo_lightning.report.paired import EQUAL, LESS, MORE, UNRESOLVED, UNTESTED
from studies.map.cells import FRESH
from studies.map.verdicts import CellResult


def render(
    results: Sequence[CellResult], labels: Mapping[str, str], controls: Sequence[str], settings: str
) -> str:
    reference = next(iter(labels))
    parts = ["# The map", settings]
    for world in dict.fromkeys(result.cell.world for result in results):
        members = [result for result in results if result.cell.world == world]
        passed = [result for result in members if result.gate.is_passed]
        parts += [
            f"## World `{world}`: {len(passed)} of {len(members)} cells pass the gate",
            _verdict_table(passed, labels, [reference, *controls]),
        ]
    return "\n\n".join(parts) + "\n"


def _verdict_table(results: Sequence[CellResult], labels: Mapping[str, str], against: Sequence[str]) -> str:
    rows = []
    for name, label in labels.items():
        cells = []
        for other in against:
            if name == other:
                cells.append("")
                continue
            counts = Counter(result.comparison(name, other).verdict for result in results)
            counts[UNRESOLVED] += counts[UNTESTED]
            cells.append(" / ".join(str(counts[verdict]) for verdict in (MORE, EQUAL, UNRESOLVED, LESS)))
        rows.append([label, *cells])
    heads = [f"against {labels[other]}" for other in against]
    table = markdown_table(["", *heads], rows)
    return f"Cells with more / equal / unresolved / less reward over training:\n\n{table}"


def cell_table(results: Sequence[CellResult], labels: Mapping[str, str]) -> tuple[list[str], list[list[str]]]:
    """Returns heads and rows of map.csv: mean reward over training of every method, mean over seeds, and the
    differences at the gate, on separate seeds, with 95 % intervals.
    """
    reference, names = next(iter(labels)), [FRESH, *labels]
    rows = []
    for result in results:
        bounded = result.figures[reference]
        rows.append(
            [
                result.cell.world,
                result.cell.name.partition("-")[2],
                "yes" if result.gate.is_passed else "no",
                f"{bounded.clip_fraction_positive or 0:.1%}",
                f"{bounded.natural_share or 0:.2f}",
                *(f"{result.figures[name].area.mean:.3f}" for name in names),
                *(interval.text(3, "+") for interval in result.gate.differences.values()),
            ]
        )
    heads = ["world", "cell", "passes the gate", "positive tokens clipped", "natural share", FRESH]
    return [*heads, *labels.values(), *(f"gate: {each}" for each in results[0].gate.differences)], rows
