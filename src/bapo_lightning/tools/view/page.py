"""A run as one self-contained HTML file."""

from __future__ import annotations

from collections import Counter
from itertools import repeat
from pathlib import Path
from typing import Any

from bapo_lightning.report.run.charts import Chart, RunCurve, other_charts, panel_charts
from bapo_lightning.report.run.curves import even_places, extremes_around, kept_places, stretch_of
from bapo_lightning.report.run.summary import IDENTITY, TIME_PARTS, overlapped_parts
from bapo_lightning.report.style import NEUTRAL, PART_COLOURS
from bapo_lightning.system.run_folder.lock import is_held
from bapo_lightning.system.run_folder.record import Row, RunReader, RunRecord, finite
from bapo_lightning.system.run_folder.text_file import write_text
from bapo_lightning.tools.page.charts import (
    AXES,
    COSTS,
    DASHES,
    axis_limits,
    coinciding,
    cost_tables,
    page_environment,
    places,
    short,
)
from bapo_lightning.tools.page.samples import has_turns, samples_by_update

PAGE = "view.html"  # in the run folder
TEMPLATES = Path(__file__).with_name("templates")
ALARM = "alarms/"
# Points of a curve, about two for each column of a panel: of moving averages, and of single values.
_MOST_AVERAGES, _MOST_VALUES = 360, 720
_MOST_CHOICES = 8  # pairs of bounds that are listed one by one


class View:
    """The page of a run, in its folder; it can be rewritten, and reads each line of the run once."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._run = folder, RunReader(folder)

    def write(self, reload_seconds: float) -> tuple[Path, bool]:
        """Writes the page, which reloads itself during the run; returns its path, and whether it does."""
        record, rollouts = self._run.read_on()
        if record.manifest.get("status") == "running" and not is_held(self._folder):
            record.manifest["status"] = "killed"  # it could not record this itself
        is_alive = record.manifest.get("status") == "running"
        page = render_view(record, rollouts, reload_seconds if is_alive else 0)
        return write_text(self._folder / PAGE, page), is_alive


def render_view(record: RunRecord, rollouts: list[Row], reload_seconds: float) -> str:
    """The page of a run, which reloads itself unless `reload_seconds` is 0."""
    manifest, last = record.manifest, record.rows[-1] if record.rows else {}
    choices = bound_choices(record)
    listed, rest = choices[:_MOST_CHOICES], choices[_MOST_CHOICES:]
    if rest:
        listed = [*listed, {"low": None, "high": None, "share": sum(choice["share"] for choice in rest)}]
    samples = samples_by_update(rollouts)
    template = page_environment(TEMPLATES).get_template("view.html.j2")
    return template.render(
        record=record,
        manifest={**dict.fromkeys((*IDENTITY, "command"), "unknown"), **manifest},
        num_updates=record.num_planned,
        axes=AXES,
        averages_of=-(-len(record.rows) // _MOST_AVERAGES) or 1,
        values_of=stretch_of(len(record.rows), _MOST_VALUES),
        **drawn(record),
        choices=listed,
        phases=phases(record),
        part_colours=[*PART_COLOURS, *repeat(NEUTRAL, len(TIME_PARTS))],
        alarms=alarms_on(record.rows),
        reward=finite(last.get("train/reward")),
        samples=samples,
        has_turns=has_turns(samples),
        reload_seconds=reload_seconds,
    )


def alarms_on(rows: list[Row]) -> list[str]:
    """Alarms that are on at the last update: `alarms/<name>` counts updates, and rose in it."""
    before, last = [{}, {}, *rows[-2:]][-2:]
    on = [name for name in last if (finite(last[name]) or 0) > (finite(before.get(name)) or 0)]
    return sorted(name.removeprefix(ALARM) for name in on if name.startswith(ALARM))


def drawn(record: RunRecord) -> dict[str, list[dict[str, Any]]]:
    """Charts of the panels and of all other metrics, and the places of points, which many curves share."""
    costs = [cost_tables({metric: record.series(metric) for metric in COSTS.values()})]
    known: dict[tuple[int, ...], int] = {}
    panels, others = (
        [_chart(chart, f"{kind}{number}", known) for number, chart in enumerate(charts)]
        for kind, charts in (("p", panel_charts(record)), ("o", other_charts(record)))
    )
    return {"panels": panels, "others": others, "places": [places(steps, costs) for steps in known]}


def _chart(chart: Chart, index: str, known: dict[tuple[int, ...], int]) -> dict[str, Any]:
    log = chart.main.log
    curves = [_curve(curve, log, known) | {"index": f"{index}-{n}"} for n, curve in enumerate(chart.curves)]
    shown, lower, upper = (
        [value for curve in curves for value in curve.get(side, curve["mean"])]
        for side in ("mean", "lower", "upper")
    )
    rules = [chart.rule[0]] if chart.rule and shown else []
    limits = axis_limits([*shown, *rules], log, [*lower, *rules], [*upper, *rules])
    at = {place: steps for steps, place in known.items()}
    lines = {curve["label"]: (at[curve["x"]], curve["mean"]) for curve in curves if not curve["marks"]}
    same = coinciding(lines, limits, log)
    return {
        "name": chart.name,
        "title": chart.panel.title,
        "unit": f"{chart.panel.unit}, log scale" if log else chart.panel.unit,
        "log": log,
        "limits": limits,
        "curves": curves,
        "same": dict.fromkeys(AXES, same),
        "rules": rules,
    }


def _curve(curve: RunCurve, log: bool, known: dict[tuple[int, ...], int]) -> dict[str, Any]:
    metric, steps, values = curve.metric, curve.steps, curve.values
    band: dict[str, Any] = {}
    if metric.is_drawn_raw:
        if log:
            positive = [place for place, value in enumerate(values) if value > 0]
            steps, values = [steps[place] for place in positive], [values[place] for place in positive]
        places = kept_places(values, _MOST_VALUES)
        shown = [values[place] for place in places]
    else:
        places = even_places(len(values), _MOST_AVERAGES)
        shown = [curve.smooth[place] for place in places]
        lower, upper = extremes_around(curve.array, places)
        band = {"lower": short(lower), "upper": short(upper), "single": True} if curve.window > 1 else {}
    return {
        "label": metric.label or metric.title,
        "colour": curve.look.colour,
        "dash": DASHES[curve.look.line],
        "marks": metric.jumps,
        "x": known.setdefault(tuple(steps[place] for place in places), len(known)),
        "mean": short(shown),
        **band,
    }


def bound_choices(record: RunRecord) -> list[dict[str, Any]]:
    """Pairs of bounds as {low, high, share of updates}, the most frequent first."""
    highs = dict(zip(*record.series("bapo/clip_high"), strict=True))
    lows = zip(*record.series("bapo/clip_low"), strict=True)
    chosen = Counter((low, highs[step]) for step, low in lows if step in highs)
    pairs = Counter[tuple[float, float]]()
    for (low, high), count in chosen.items():
        pairs[round(low, 2), round(high, 2)] += count
    return [{"low": low, "high": high, "share": n / pairs.total()} for (low, high), n in pairs.most_common()]


def phases(record: RunRecord) -> list[tuple[str, float]]:
    """(part, share of the trainer's time) of the updates so far, with the remainder as `other`; empty without
    times. Work that runs in parallel with training is not a part.
    """
    total = sum(record.series("time/step_seconds")[1])
    if not total:
        return []
    overlapped = overlapped_parts(record)
    counted = [part for part in TIME_PARTS if part not in overlapped]
    parts = [(part, sum(record.series(f"time/{part}_seconds")[1]) / total) for part in counted]
    other = max(0.0, 1 - sum(share for _, share in parts))
    return [(part, share) for part, share in [*parts, ("other", other)] if share > 0]
