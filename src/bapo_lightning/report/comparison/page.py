"""The comparison as one HTML file that needs nothing else: styles, script and drawings are inside."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from bapo_lightning.report.comparison.charts import AXES, make_charts
from bapo_lightning.report.comparison.runs import QUANTITIES, STATISTICS, damage
from bapo_lightning.report.comparison.table import Comparison
from bapo_lightning.report.intervals import Interval
from bapo_lightning.report.page.environment import page_environment

TEMPLATES = Path(__file__).with_name("templates")
HEADLINES = QUANTITIES[:5]  # columns of the table on top


def render_page(comparison: Comparison, title: str, command: str, made_at: str) -> str:
    """Renders the page, which names the command that made it and the time, for people."""
    environment = page_environment(TEMPLATES)
    environment.filters |= {"interval": interval_text, "p": p_text, "number": number_text}
    environment.filters |= {"duration": duration_text, "last_part": lambda path: Path(path).name}
    template = environment.get_template("compare.html.j2")
    return template.render(title=title, command=command, made_at=made_at, **_content(comparison))


def _content(comparison: Comparison) -> dict[str, Any]:
    """Variables of the template."""
    drawn = {metric for (_, _, metric), curve in comparison.curves.items() if curve.steps}
    recorded = [quantity for quantity in comparison.quantities if quantity.metric in drawn]
    return {
        "comparison": comparison,
        "looks": comparison.looks,
        "axes": AXES,
        "statistics": STATISTICS,
        "quantities": recorded,
        "headlines": [quantity for quantity in HEADLINES if quantity in recorded],
        "missing": [quantity for quantity in QUANTITIES if quantity not in recorded],
        "charts": [chart for quantity in recorded for chart in make_charts(comparison, quantity)],
        "damage": damage,
        "seeds": sorted({run.seed for run in comparison.usable}),
        "environments": environments(comparison),
    }


def environments(comparison: Comparison) -> dict[str, Counter[str]]:
    """Commits, versions and devices that are not the same for all runs: name -> value -> number of runs."""
    found: dict[str, Counter[str]] = {}
    for run in comparison.usable:
        manifest = run.manifest
        devices, versions = manifest.get("devices"), manifest.get("versions") or {}
        values = {"commit": manifest.get("git_commit")}
        values |= {name: manifest.get(name) for name in ("python", "platform")}
        values |= devices if isinstance(devices, dict) else {}
        for name, value in (values | versions).items():
            found.setdefault(name, Counter())[str(value)] += 1
    num_runs = len(comparison.usable)
    return {name: counts for name, counts in found.items() if len(counts) > 1 or counts.total() < num_runs}


def interval_text(interval: Interval | None, signed: bool = False) -> str:
    """Formats mean and half-width, with fewer decimals the larger the mean is."""
    if interval is None:
        return "\N{EN DASH}"
    decimals = 0 if abs(interval.mean) >= 1000 else 1 if abs(interval.mean) >= 10 else 3
    text = interval.text(decimals, "+" if signed else "").removesuffix(" ± n/a")
    return text.replace("-", "\N{MINUS SIGN}")


def p_text(p_value: float | None) -> str:
    """Formats a p-value; below 0.001 only that it is below."""
    if p_value is None:
        return "no test"
    return "p < 0.001" if p_value < 0.001 else f"p = {p_value:.3f}" if p_value < 0.1 else f"p = {p_value:.2f}"


def number_text(value: float | None) -> str:
    """Formats a number with separators between thousands."""
    return "\N{EN DASH}" if value is None else f"{value:,.0f}"


def duration_text(seconds: float | None) -> str:
    """Formats a time span in seconds, minutes or hours."""
    if seconds is None:
        return "\N{EN DASH}"
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.1f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
