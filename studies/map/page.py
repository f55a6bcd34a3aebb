"""The map in words and tables: map.md."""

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
        own = [result for result in results if result.cell.world == world]
        told = [result for result in own if result.gate.is_passed]
        parts += [
            f"## World `{world}`: {len(told)} of {len(own)} cells pass the gate",
            _verdict_table(told, labels, [reference, *controls]),
            _cell_table(own, labels, reference),
            _gate_table(own),
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


def _cell_table(results: Sequence[CellResult], labels: Mapping[str, str], reference: str) -> str:
    names = [FRESH, *labels]
    rows = []
    for result in results:
        areas = [f"{result.figures[name].area.mean:.3f}" for name in names]
        bounded = result.figures[reference]
        rows.append(
            [
                result.cell.name.partition("-")[2] + ("" if result.gate.is_passed else " (fails the gate)"),
                f"{bounded.clip_fraction_positive or 0:.1%}",
                f"{bounded.natural_share or 0:.2f}",
                *areas,
            ]
        )
    heads = ["cell", "positive tokens clipped", "natural share", FRESH, *labels.values()]
    return "Mean reward over training (means over seeds):\n\n" + markdown_table(heads, rows)


def _gate_table(results: Sequence[CellResult]) -> str:
    heads = ["cell", *results[0].gate.differences, "passes"]
    rows = [
        [
            result.cell.name.partition("-")[2],
            *(interval.text(3, "+") for interval in result.gate.differences.values()),
            "yes" if result.gate.is_passed else "no",
        ]
        for result in results
    ]
    return "The gate, on seeds of its own (95 % intervals):\n\n" + markdown_table(heads, rows)
