"""The comparison as one HTML file that needs nothing else: styles, script and drawings are inside."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bapo_lightning.report.comparison.notes import damage
from bapo_lightning.report.comparison.quantities import QUANTITIES, STATISTICS, Quantity
from bapo_lightning.report.comparison.svg import draw_panels
from bapo_lightning.report.comparison.table import Comparison, Result
from bapo_lightning.report.intervals import Interval
from bapo_lightning.report.plot_style import line_styles

if TYPE_CHECKING:
    from jinja2 import Environment

TEMPLATES = Path(__file__).with_name("templates")
HEADLINES = QUANTITIES[:5]  # columns of the table on top


def render_page(comparison: Comparison, title: str, command: str, made_at: str) -> str:
    """Renders the page.

    Args:
        comparison: what it shows.
        title: of the page.
        command: that made the page.
        made_at: time, for people.
    """
    template = _environment().get_template("compare.html.j2")
    return template.render(
        title=title, command=command, made_at=made_at, statistics=STATISTICS, **_content(comparison)
    )


def _environment() -> Environment:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    # Autoescape: folder names, settings and errors are text that others wrote.
    loader = FileSystemLoader(TEMPLATES)
    environment = Environment(
        loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {
        "interval": interval_text,
        "p": p_text,
        "number": number_text,
        "duration": duration_text,
        "last_part": lambda path: Path(path).name,
    }
    return environment


def _content(comparison: Comparison) -> dict[str, Any]:
    """Variables of the template."""
    recorded = [quantity for quantity in QUANTITIES if _recorded(comparison, quantity)]
    colours = comparison.colours
    return {
        "comparison": comparison,
        "colours": colours,
        "lines": line_styles(colours),
        "quantities": recorded,
        "headlines": [quantity for quantity in HEADLINES if quantity in recorded],
        "missing": [quantity for quantity in QUANTITIES if quantity not in recorded],
        "panels": {
            quantity.metric: draw_panels(comparison, quantity, colours, f"panel-{rank}")
            for rank, quantity in enumerate(recorded)
        },
        "verdict": verdict,
        "damage": damage,
        "seeds": sorted({run.seed for run in comparison.usable}),
        "environments": environments(comparison),
    }


def verdict(result: Result) -> str:
    """One word for a difference: more, less, nothing (no difference was shown), untested, or none (there is
    nothing to compare with).
    """
    if result.difference is None:
        return "none"
    if result.p_adjusted is None:
        return "untested"
    if not result.is_significant:
        return "nothing"
    return "more" if result.difference.mean > 0 else "less"


def environments(comparison: Comparison) -> dict[str, dict[str, int]]:
    """Commits, versions and devices that are not the same for all runs: name -> value -> number of runs."""
    found: dict[str, dict[str, int]] = {}
    for run in comparison.usable:
        manifest: Mapping[str, Any] = run.manifest
        devices = manifest.get("devices")
        values = {
            "commit": manifest.get("git_commit"),
            "python": manifest.get("python"),
            "platform": manifest.get("platform"),
        }
        values |= devices if isinstance(devices, dict) else {}
        for name, value in (values | (manifest.get("versions") or {})).items():
            counts = found.setdefault(name, {})
            counts[str(value)] = counts.get(str(value), 0) + 1
    return {
        name: counts
        for name, counts in found.items()
        if len(counts) > 1 or sum(counts.values()) < len(comparison.usable)
    }


def interval_text(interval: Interval | None, signed: bool = False) -> str:
    """Formats mean and half-width, with fewer decimals the larger the mean is."""
    if interval is None:
        return "\N{EN DASH}"
    decimals = 0 if abs(interval.mean) >= 1000 else 1 if abs(interval.mean) >= 10 else 3
    sign = "+" if signed else ""
    half_width = (
        "" if interval.half_width is None else f" \N{PLUS-MINUS SIGN} {interval.half_width:.{decimals}f}"
    )
    return f"{interval.mean:{sign}.{decimals}f}{half_width}".replace("-", "\N{MINUS SIGN}")


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


def _recorded(comparison: Comparison, quantity: Quantity) -> bool:
    return any(
        curve.steps for (_, _, metric), curve in comparison.curves.items() if metric == quantity.metric
    )
