"""The comparison as one HTML file that needs nothing else: styles, script and drawings are inside."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bapo_lightning.report.comparison.svg import draw_panels
from bapo_lightning.report.comparison.table import (
    QUANTITIES,
    STATISTICS,
    Comparison,
    Quantity,
    Result,
    damage,
)
from bapo_lightning.report.intervals import Interval
from bapo_lightning.report.plot_style import line_styles, setting_colours

if TYPE_CHECKING:
    from jinja2 import Environment

TEMPLATES = Path(__file__).with_name("templates")
HEADLINES = QUANTITIES[:5]  # what the table on top shows


def render_page(comparison: Comparison, title: str, command: str, made_at: str) -> str:
    """The page.

    Args:
        comparison: what it shows.
        title: of the page.
        command: that made it.
        made_at: time, for people.
    """
    template = _environment().get_template("compare.html.j2")
    return template.render(
        title=title, command=command, made_at=made_at, statistics=STATISTICS, **_content(comparison)
    )


def _environment() -> Environment:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    # Autoescape: folder names, settings and errors are text of others.
    loader = FileSystemLoader(TEMPLATES)
    environment = Environment(
        loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {
        "interval": interval_text,
        "p": p_text,
        "number": number_text,
        "duration": duration_text,
    }
    environment.filters |= {"last_part": lambda path: Path(path).name}
    return environment


def _content(comparison: Comparison) -> dict[str, Any]:
    """What the template shows, by the names that it uses."""
    recorded = [quantity for quantity in QUANTITIES if _recorded(comparison, quantity)]
    colours = setting_colours(
        {run["setting"]: run["algorithm"] for run in comparison.usable}, comparison.settings
    )
    pairs = [(setting, condition) for condition in comparison.conditions for setting in comparison.settings]
    return {
        "comparison": comparison,
        "colours": colours,
        "lines": line_styles(colours),
        "cells": [pair for pair in pairs if (*pair, QUANTITIES[0].metric, "final") in comparison.results],
        "quantities": recorded,
        "headlines": [quantity for quantity in HEADLINES if quantity in recorded],
        "missing": [quantity for quantity in QUANTITIES if quantity not in recorded],
        "panels": {
            quantity.metric: draw_panels(comparison, quantity, colours, f"panel-{rank}")
            for rank, quantity in enumerate(recorded)
        },
        "verdict": verdict,
        "damage": damage,
        "left_out": [run for run in comparison.runs if run["problem"] is not None],
        "seeds": sorted({run["seed"] for run in comparison.usable}),
        "environments": environments(comparison),
    }


def verdict(result: Result) -> str:
    """What a difference shows, in a word: more, less, nothing (none was shown), untested, or none (there is
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
    """Commits, versions and devices of the runs where these are not all alike: name -> value -> number of
    runs.
    """
    found: dict[str, dict[str, int]] = {}
    for run in comparison.usable:
        manifest: Mapping[str, Any] = run["manifest"]
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
    """Mean and half-width with as many decimals as their sizes ask for."""
    if interval is None:
        return "\N{EN DASH}"
    decimals = 0 if abs(interval.mean) >= 1000 else 1 if abs(interval.mean) >= 10 else 3
    sign = "+" if signed else ""
    half_width = (
        "" if interval.half_width is None else f" \N{PLUS-MINUS SIGN} {interval.half_width:.{decimals}f}"
    )
    return f"{interval.mean:{sign}.{decimals}f}{half_width}".replace("-", "\N{MINUS SIGN}")


def p_text(p_value: float | None) -> str:
    """A p-value; the least that is told apart is 0.001."""
    if p_value is None:
        return "no test"
    return "p < 0.001" if p_value < 0.001 else f"p = {p_value:.3f}" if p_value < 0.1 else f"p = {p_value:.2f}"


def number_text(value: float | None) -> str:
    """A number with thousands apart."""
    return "\N{EN DASH}" if value is None else f"{value:,.0f}"


def duration_text(seconds: float | None) -> str:
    """A time span in its largest unit that leaves one decimal of meaning."""
    if seconds is None:
        return "\N{EN DASH}"
    return (
        f"{seconds:.0f} s"
        if seconds < 120
        else f"{seconds / 60:.1f} min"
        if seconds < 7200
        else f"{seconds / 3600:.1f} h"
    )


def _recorded(comparison: Comparison, quantity: Quantity) -> bool:
    return any(
        curve.steps for (_, _, metric), curve in comparison.curves.items() if metric == quantity.metric
    )
