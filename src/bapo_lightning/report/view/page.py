"""A run as one HTML file that needs nothing else."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path
from typing import Any

from bapo_lightning.report.page.charts import (
    AXES,
    COSTS,
    DASHES,
    axis_limits,
    coinciding,
    page_environment,
    places,
    short,
)
from bapo_lightning.report.page.samples import has_turns, samples_by_update
from bapo_lightning.report.run.charts import Chart, RunCurve, other_charts, panel_charts
from bapo_lightning.report.run.summary import IDENTITY, TIME_PARTS, beside_training
from bapo_lightning.run_folder.lock import is_held
from bapo_lightning.run_folder.record import Row, RunRecord, finite, read_rollouts, read_run
from bapo_lightning.run_folder.text_file import write_text

PAGE = "view.html"  # in the run folder
TEMPLATES = Path(__file__).with_name("templates")
ALARM = "alarms/"
_MOST_POINTS = 400  # of a curve
_MOST_CHOICES = 8  # pairs of bounds that are listed one by one


def write_view(folder: Path, reload_seconds: float) -> tuple[Path, bool]:
    """Writes the page, which reloads itself while the run goes on; returns its path, and whether it does."""
    record = read_run(folder)
    if record.manifest.get("status") == "running" and not is_held(folder):
        record.manifest["status"] = "killed"  # without a moment to say so
    is_alive = record.manifest.get("status") == "running"
    page = render_view(record, read_rollouts(folder), reload_seconds if is_alive else 0)
    return write_text(folder / PAGE, page), is_alive


def render_view(record: RunRecord, rollouts: list[Row], reload_seconds: float) -> str:
    """The page of a run, which reloads itself unless `reload_seconds` is 0."""
    manifest, last = record.manifest, record.rows[-1] if record.rows else {}
    choices = bound_choices(record)
    listed, rest = choices[:_MOST_CHOICES], choices[_MOST_CHOICES:]
    if rest:
        listed = [*listed, {"low": None, "high": None, "share": sum(choice["share"] for choice in rest)}]
    batches, staleness = record.config.get("scale", {}).get("num_rollout_batches"), manifest.get("staleness")
    samples = samples_by_update(rollouts)
    template = page_environment(TEMPLATES).get_template("view.html.j2")
    return template.render(
        record=record,
        manifest={**dict.fromkeys((*IDENTITY, "command"), "unknown"), **manifest},
        num_updates=batches * staleness if batches and staleness else None,
        axes=AXES,
        **drawn(record),
        choices=listed,
        phases=phases(record),
        alarms=alarms_on(record.rows),
        reward=finite(last.get("train/reward")),
        samples=samples,
        has_turns=has_turns(samples),
        reload_seconds=reload_seconds,
    )


def alarms_on(rows: list[Row]) -> list[str]:
    """Alarms that are on at the last update: `alarms/<name>` counts updates, and rose in it."""
    last, before = ([{}, {}, *rows][-1], [{}, {}, *rows][-2])
    on = [name for name in last if (finite(last[name]) or 0) > (finite(before.get(name)) or 0)]
    return sorted(name.removeprefix(ALARM) for name in on if name.startswith(ALARM))


def drawn(record: RunRecord) -> dict[str, list[dict[str, Any]]]:
    """Charts of the panels and of all other metrics, and the places of points, which many curves share."""
    costs = [{metric: record.series(metric) for metric in COSTS.values()}]
    known: dict[tuple[int, ...], int] = {}
    panels, others = (
        [_chart(chart, f"{kind}{number}", known) for number, chart in enumerate(charts)]
        for kind, charts in (("p", panel_charts(record)), ("o", other_charts(record)))
    )
    return {"panels": panels, "others": others, "places": [places(steps, costs) for steps in known]}


def _chart(chart: Chart, index: str, known: dict[tuple[int, ...], int]) -> dict[str, Any]:
    log = chart.main.log
    curves = [_curve(curve, log, known) | {"index": f"{index}-{n}"} for n, curve in enumerate(chart.curves)]
    shown = [value for curve in curves for value in curve["mean"]]
    rules = [chart.rule[0]] if chart.rule and shown else []
    limits = axis_limits([*shown, *rules], log)
    at = {place: steps for steps, place in known.items()}
    lines = {curve["label"]: (at[curve["x"]], curve["mean"]) for curve in curves if not curve["marks"]}
    return {
        "name": chart.name,
        "title": chart.panel.title,
        "unit": f"{chart.panel.unit}, log scale" if log else chart.panel.unit,
        "log": log,
        "limits": limits,
        "curves": curves,
        "same": coinciding(lines, limits, log),
        "rules": rules,
    }


def _curve(curve: RunCurve, log: bool, known: dict[tuple[int, ...], int]) -> dict[str, Any]:
    metric = curve.metric
    values = curve.values if metric.log or metric.jumps else curve.smooth
    points = [(at, value) for at, value in zip(curve.steps, values, strict=True) if value > 0 or not log]
    points = points[:: -max(1, math.ceil(len(points) / _MOST_POINTS))][::-1]
    at = tuple(step for step, _ in points)
    return {
        "label": metric.label or metric.title,
        "colour": curve.look.colour,
        "dash": DASHES[curve.look.line],
        "marks": metric.jumps,
        "x": known.setdefault(at, len(known)),
        "mean": short(value for _, value in points),
    }


def bound_choices(record: RunRecord) -> list[dict[str, Any]]:
    """Pairs of bounds as {low, high, share of updates}, the most frequent first."""
    pairs = Counter[tuple[float, float]]()
    for row in record.rows:
        low, high = finite(row.get("bapo/clip_low")), finite(row.get("bapo/clip_high"))
        if low is not None and high is not None:
            pairs[round(low, 2), round(high, 2)] += 1
    return [{"low": low, "high": high, "share": n / pairs.total()} for (low, high), n in pairs.most_common()]


def phases(record: RunRecord) -> list[tuple[str, float]]:
    """(part, share of the trainer's time) of the updates so far, with what is left as `other`; empty without
    times. What runs beside training is no part.
    """
    total = sum(record.series("time/step_seconds")[1])
    if not total:
        return []
    beside = beside_training(record)
    parts = [
        (part, sum(record.series(f"time/{part}_seconds")[1]) / total)
        for part in TIME_PARTS
        if part not in beside
    ]
    other = max(0.0, 1 - sum(share for _, share in parts))
    return [(part, share) for part, share in [*parts, ("other", other)] if share > 0]
