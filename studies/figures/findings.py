"""Verdicts on the orderings that the paper asserts: judged over the seeds here; on the console, in figures.md
and in figures.json.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median

from rich import box
from rich.console import Console
from rich.table import Table as Printed

from bapo_lightning.report.intervals import LEAST_VALUES, Interval, t_quantile
from bapo_lightning.report.markdown import markdown_table
from bapo_lightning.report.paired import LEVEL, holm, paired_difference, paired_p_value
from bapo_lightning.report.progress.terminal import fits
from bapo_lightning.system.run_folder.text_file import write_json, write_text
from studies.figures.catalogue import Claim, Figure

Table = Mapping[str, Mapping[str, Mapping[int, float]]]  # variant -> value's name -> seed -> value
CLAIM_HEADS = ("claim", "difference, 95 %", "p", "p, Holm", "here")
HOLDS, OPPOSITE, OPEN, NO_DATA = "holds", "the opposite holds", "not shown", "no data"


@dataclass(frozen=True)
class ClaimVerdict:
    figure: str
    claim: Claim
    interval: Interval | None  # 95 %, of the difference in the claimed direction: positive agrees
    verdict: str
    p_value: float | None  # two-sided t-test, paired by seed where two variants are compared
    adjusted: float | None = None  # by Holm over all claims that were judged together


@dataclass(frozen=True)
class Source:
    """The runs that a figure was made of."""

    num_runs: int
    seeds: tuple[int, ...]
    seconds: float  # wall time of its runs, added up; runs that several figures share count in each


@dataclass(frozen=True)
class Findings:
    figures: Sequence[Figure]
    pictures: dict[str, Path]
    verdicts: Sequence[ClaimVerdict]
    sources: dict[str, Source]
    arguments: Sequence[str]  # of the command line


def judge(figure: str, claim: Claim, table: Table) -> ClaimVerdict:
    """Judges a claim alone: `holds` or `the opposite holds` when the 95 % interval lies wholly on that side
    of zero, else `not shown`. That two variants are alike holds when a test of equivalence shows it, and its
    opposite when the interval lies wholly outside.
    """

    def values_of(variant: str | None) -> Mapping[int, float]:
        values = table.get(variant or "", {}).get(claim.value, {})
        if not claim.spread or not values:
            return values
        middle = median(values.values())
        return {seed: abs(value - middle) for seed, value in values.items()}

    alike = None
    if claim.of is None:
        more = values_of(claim.more)
        less = {seed: claim.times * value for seed, value in values_of(claim.less).items()}
        interval, p_value = paired_difference(more, less), paired_p_value(more, less)
        alike = claim.within and equivalence_p_value(more, less, claim.within)
    else:
        sign, level = (1.0, claim.above) if claim.above is not None else (-1.0, claim.below or 0.0)
        values = {seed: sign * (value - level) for seed, value in values_of(claim.of).items()}
        zeros = dict.fromkeys(values, 0.0)
        interval, p_value = paired_difference(values, zeros), paired_p_value(values, zeros)
    if interval is None or interval.half_width is None:
        return ClaimVerdict(figure, claim, interval, NO_DATA, None)
    if alike is not None:
        apart = 2 * (1 - alike)
        verdict = HOLDS if alike < LEVEL else OPPOSITE if apart < LEVEL else OPEN
        return ClaimVerdict(figure, claim, interval, verdict, min(alike, apart))
    verdict = OPEN if not interval.excludes_zero else HOLDS if interval.mean > 0 else OPPOSITE
    return ClaimVerdict(figure, claim, interval, verdict, p_value)


def equivalence_p_value(
    values: Mapping[int, float], reference: Mapping[int, float], within: float
) -> float | None:
    """P-value of two one-sided paired t-tests (Schuirmann 1987): that the mean difference is `within` or more
    away from zero; None with fewer than `LEAST_VALUES` seeds that both have, and where all differences are
    equal but not zero.
    """
    from scipy.stats import t

    difference = paired_difference(values, reference)
    if difference is None or difference.half_width is None or difference.count < LEAST_VALUES:
        return None
    if difference.half_width == 0:
        return 0.0 if difference.mean == 0 else None
    room = within - abs(difference.mean)
    error = difference.half_width / t_quantile(difference.count - 1)
    return float(t.sf(room / error, difference.count - 1))


def adjust(verdicts: Sequence[ClaimVerdict]) -> list[ClaimVerdict]:
    """Judges claims together: adds p-values adjusted by Holm's method over all of them, and takes back the
    verdicts that these do not bear.
    """
    adjusted = holm([verdict.p_value for verdict in verdicts])
    return [
        replace(
            verdict, adjusted=p_value, verdict=verdict.verdict if p_value is None or p_value < LEVEL else OPEN
        )
        for verdict, p_value in zip(verdicts, adjusted, strict=True)
    ]


def print_findings(findings: Findings, console: Console | None = None) -> None:
    console = console or Console()
    wide = _wide(findings.verdicts)
    console.print(wide if fits(wide, console) else _narrow(findings.verdicts))
    console.print(
        "  difference: mean ± 95 % interval over seeds; positive agrees with the paper", highlight=False
    )
    for path in [*findings.pictures.values(), next(iter(findings.pictures.values())).parent / "figures.md"]:
        console.print(f"  {path}", markup=False, highlight=False, soft_wrap=True)


def _wide(verdicts: Sequence[ClaimVerdict]) -> Printed:
    table = Printed(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    for title in ("figure", "the paper says", "difference", "p (Holm)", "here"):
        table.add_column(title, justify="right" if title in ("difference", "p (Holm)") else "left")
    for verdict in verdicts:
        numbers = _interval_text(verdict.interval), _p_text(verdict.adjusted)
        table.add_row(verdict.figure, verdict.claim.says, *numbers, verdict.verdict)
    return table


def _narrow(verdicts: Sequence[ClaimVerdict]) -> Printed:
    table = Printed(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("figure", no_wrap=True)
    table.add_column("the paper says; here: difference, p (Holm)")
    for verdict in verdicts:
        numbers = f"{_interval_text(verdict.interval)}, p {_p_text(verdict.adjusted)}"
        table.add_row(verdict.figure, f"{verdict.claim.says}\n  {verdict.verdict}: {numbers}")
    return table


def write_findings(findings: Findings, table: Table, folder: Path) -> None:
    sections = (line for figure in findings.figures for line in _section(findings, figure))
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


def _section(findings: Findings, figure: Figure) -> Sequence[str]:
    source = findings.sources[figure.name]
    name = f"Figure {figure.name}" if figure.name.isdigit() else "Not in the paper"
    arguments = f' ARGS="{" ".join(findings.arguments)}"' if findings.arguments else ""
    seeds = ", ".join(map(str, source.seeds)) or "none"
    claims = [
        (
            *(verdict.claim.says, _interval_text(verdict.interval)),
            *(_p_text(verdict.p_value), _p_text(verdict.adjusted), verdict.verdict),
        )
        for verdict in findings.verdicts
        if verdict.figure == figure.name
    ]
    return [
        *(f"## {name}: {figure.title}", ""),
        f"`make figures FIG={figure.name}{arguments}`: {source.num_runs} runs, seeds {seeds}, "
        f"{source.seconds / 60:.0f} minutes of runs.",
        *("", f"The paper: {figure.paper}", ""),
        *(f"![{figure.title}]({findings.pictures[figure.name].name})", ""),
        markdown_table(CLAIM_HEADS, claims),
        "",
    ]


def _interval_text(interval: Interval | None) -> str:
    if interval is None:
        return "-"
    return interval.text(1 if abs(interval.mean) >= 10 else 3, sign="+")


def _p_text(p_value: float | None) -> str:
    return "-" if p_value is None else "< 0.001" if p_value < 0.001 else f"{p_value:.3f}"
