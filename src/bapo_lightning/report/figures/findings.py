"""Results of the figures, claim by claim: on the console, in figures.md and in figures.json."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from bapo_lightning.report.figures.catalogue import Figure
from bapo_lightning.report.figures.claims import Table, Verdict
from bapo_lightning.report.intervals import Interval
from bapo_lightning.run_folder.text_file import write_json, write_text

if TYPE_CHECKING:
    from rich.console import Console

_PLUS_MINUS = "\u00b1"


@dataclass(frozen=True)
class Source:
    """The runs that a figure was made of."""

    num_runs: int
    seeds: tuple[int, ...]
    seconds: float  # wall time of its runs, added up; runs that several figures share count in each


@dataclass(frozen=True)
class Findings:
    """All results of the command."""

    figures: tuple[Figure, ...]
    pictures: dict[str, Path]
    verdicts: tuple[Verdict, ...]
    sources: dict[str, Source]
    arguments: tuple[str, ...]  # of the command line

    def of(self, figure: Figure) -> list[Verdict]:
        """The verdicts on one figure's claims."""
        return [verdict for verdict in self.verdicts if verdict.figure == figure.name]


def print_findings(findings: Findings, console: Console | None = None) -> None:
    """Prints one table for all figures, then the paths of the files."""
    from rich import box
    from rich.console import Console
    from rich.table import Table as Printed

    console = console or Console()
    table = Printed(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    for title in ("figure", "the paper says", "difference", "p (Holm)", "here"):
        is_number = title in ("difference", "p (Holm)")
        table.add_column(title, justify="right" if is_number else "left", overflow="fold")
    for verdict in findings.verdicts:
        numbers = interval_text(verdict.interval), p_text(verdict)
        table.add_row(verdict.figure, verdict.claim.says, *numbers, verdict.verdict)
    console.print(table)
    console.print(
        f"  difference: mean {_PLUS_MINUS} 95 % interval over seeds, in the direction that the paper claims",
        highlight=False,
    )
    for path in [*findings.pictures.values(), next(iter(findings.pictures.values())).parent / "figures.md"]:
        console.print(f"  {path}", markup=False, highlight=False, soft_wrap=True)


def write_findings(findings: Findings, table: Table, folder: Path) -> None:
    """Writes figures.md (all pictures and tables) and figures.json (every value of every run)."""
    sections = (line for figure in findings.figures for line in section(findings, figure))
    write_text(folder / "figures.md", "\n".join(["# The paper's figures in small", "", *sections]))
    claims = [
        {
            **asdict(verdict.claim),
            **{"figure": verdict.figure, "verdict": verdict.verdict, "p_value": verdict.p_value},
            **{"holm": verdict.adjusted, "interval": verdict.interval},
        }
        for verdict in findings.verdicts
    ]
    content = {"claims": claims, "sources": findings.sources, "values": table}
    write_json(folder / "figures.json", content)


def section(findings: Findings, figure: Figure) -> Sequence[str]:
    """The part of figures.md on one figure, as lines of Markdown."""
    source = findings.sources[figure.name]
    name = f"Figure {figure.name}" if figure.name.isdigit() else "Not in the paper"
    arguments = f' ARGS="{" ".join(findings.arguments)}"' if findings.arguments else ""
    seeds = ", ".join(map(str, source.seeds)) or "none"
    return [
        f"## {name}: {figure.title}",
        "",
        f"`make figures FIG={figure.name}{arguments}`: {source.num_runs} runs, seeds {seeds}, "
        f"{source.seconds / 60:.0f} minutes of runs.",
        "",
        f"The paper: {figure.paper}",
        "",
        f"![{figure.title}]({findings.pictures[figure.name].name})",
        "",
        "| claim | difference, 95 % | p | p, Holm | here |",
        "|---|---|---|---|---|",
        *(
            f"| {verdict.claim.says} | {interval_text(verdict.interval)} | {p_text(verdict, adjusted=False)} "
            f"| {p_text(verdict)} | {verdict.verdict} |"
            for verdict in findings.of(figure)
        ),
        "",
    ]


def interval_text(interval: Interval | None) -> str:
    """Formats a mean with its half-width: three decimals, one for large numbers."""
    if interval is None:
        return "-"
    decimals = 1 if abs(interval.mean) >= 10 else 3
    width = "n/a" if interval.half_width is None else f"{interval.half_width:.{decimals}f}"
    return f"{interval.mean:+.{decimals}f} {_PLUS_MINUS} {width}"


def p_text(verdict: Verdict, adjusted: bool = True) -> str:
    """Formats a p-value."""
    value = verdict.adjusted if adjusted else verdict.p_value
    return "-" if value is None else "< 0.001" if value < 0.001 else f"{value:.3f}"
