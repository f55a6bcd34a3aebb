"""Plots of one run: a moving average over faint raw points, one PNG per quantity and an overview of all six.

A quantity that was never recorded leaves a panel that says so.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median
from typing import Any

from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from bapo_lightning.report import style
from bapo_lightning.report.run.curves import HELD_OUT, series
from bapo_lightning.report.run.recorded import Band, Recorded, find_recorded
from bapo_lightning.run_folder.record import RunRecord, finite, read_run

_XLABEL = "optimizer update"
_MOST_CHOICES = 2  # of a bound, named in its legend


@dataclass(frozen=True)
class Curve:
    """One metric in a panel."""

    metric: str
    colour: str
    label: str = ""
    line: str = "-"
    spiky: bool = False  # rare large values matter: moving median over joined raw points
    choices: bool = False  # few values, far apart: every update is drawn, and no average, which none has


@dataclass(frozen=True)
class Panel:
    """One plot: its curves and decoration."""

    name: str  # file name without .png
    title: str
    ylabel: str
    curves: tuple[Curve, ...]
    decorate: Callable[[Axes, RunRecord], None] | None = None

    @property
    def main(self) -> Curve:
        """The curve that recorded ones are drawn beside: the first solid line."""
        return next(curve for curve in self.curves if curve.line == "-")


def plot_run(folder: str | Path, output: str | Path | None = None) -> list[Path]:
    """Draws the plots of the run in `folder` into `plots/` (under `output`, by default the folder itself);
    returns the paths of the PNGs.

    Raises:
        DataError: `folder` is not a run folder.
    """
    record = read_run(folder)
    recorded = find_recorded(record.config)
    target = Path(output or folder) / "plots"
    panels = run_panels(str(record.manifest.get("algorithm", "")))
    paths = []
    for panel in panels:
        figure = style.new_figure(6.4, 4.0)
        draw_panel(figure.subplots(), panel, record, recorded)
        figure.suptitle(record.name, fontsize=8, color=style.FAINT)
        paths.append(style.save_png(figure, target / f"{panel.name}.png"))
    figure = style.new_figure(14.0, 7.4)
    figure.suptitle(_overview_title(record), fontsize=12, color=style.INK)
    for axes, panel in zip(figure.subplots(2, 3).flat, panels, strict=True):
        draw_panel(axes, panel, record, recorded)
    paths.append(style.save_png(figure, target / "overview.png"))
    return paths


def run_panels(algorithm: str) -> tuple[Panel, ...]:
    """The six panels; the main curve of each has the algorithm's colour."""
    colour = style.algorithm_colour(algorithm)
    positive, negative = style.sign_colours(algorithm)
    share = (
        Curve("bapo/positive_share_unclipped", style.FAINT, "without clipping", "--"),
        Curve("bapo/positive_share", colour, "at the chosen bounds"),
    )
    bounds = (
        Curve("bapo/clip_high", positive, "upper bound", choices=True),
        Curve("bapo/clip_low", negative, "lower bound", choices=True),
    )
    clipped = (
        Curve("train/clip_fraction_positive", positive, "of positive tokens", "--"),
        Curve("train/clip_fraction_negative", negative, "of negative tokens", "-."),
        Curve("train/clip_fraction", colour, "of all tokens"),
    )
    reward = Curve("train/reward", colour, "in training"), Curve(HELD_OUT, style.BLACK, "held out", "--")
    entropy = Curve("policy/entropy", colour, "this run")
    norm = Curve("train/grad_norm", colour, "this run", spiky=True)
    unit = "entropy per token [nats]"
    return (
        Panel("reward", "Reward", "mean per sample", reward),
        Panel("entropy", "Policy entropy", unit, (entropy,), _from_zero),
        Panel("positive_share", "Positive share of the gradient", "share [fraction]", share, _draw_target),
        Panel("bounds", "Clipping bounds", "importance ratio, every update", bounds, _draw_one),
        Panel("grad_norm", "Gradient norm", "L2 norm", (norm,), _scale_grad_norm),
        Panel("clip_fraction", "Clipped tokens", "fraction of tokens", clipped, _from_zero),
    )


def draw_panel(axes: Axes, panel: Panel, record: RunRecord, recorded: Recorded | None = None) -> None:
    """Draws one panel without the curves that the run lacks, and behind its main curve the recorded ones of
    its protocol; a panel without any curve says so.
    """
    style.style_axes(axes, panel.title, _XLABEL, panel.ylabel)
    drawn = [(curve, *series(record, curve.metric)) for curve in panel.curves]
    drawn = [(curve, steps, values) for curve, steps, values in drawn if values]
    if not drawn:
        style.say_missing(axes, f"{panel.main.metric}\nwas not recorded")
        return
    band = recorded.curves.get(panel.main.metric) if recorded else None
    if recorded and band:
        _draw_band(axes, band, recorded)
    for curve, steps, values in drawn:
        _draw_curve(axes, curve, steps, values, batch_period(record.manifest))
    if panel.decorate:
        panel.decorate(axes, record)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    if band or len(panel.curves) > 1:
        style.draw_legend(axes)


def _draw_band(axes: Axes, band: Band, recorded: Recorded) -> None:
    colour = style.algorithm_colour(recorded.algorithm)
    axes.fill_between(band.steps, band.lower, band.upper, color=colour, alpha=0.2, linewidth=0)
    axes.plot(band.steps, band.mean, color=colour, linewidth=1.2, label=recorded.label)


def batch_period(manifest: dict[str, Any]) -> int:
    """Updates on each rollout batch, 1 where the manifest does not say."""
    staleness = manifest.get("staleness")
    return staleness if isinstance(staleness, int) and staleness > 0 else 1


def _draw_curve(axes: Axes, curve: Curve, steps: list[int], values: list[float], period: int) -> None:
    if curve.spiky:
        # Spikes are the message: raw points are joined, and a median keeps spikes out of the smooth curve.
        axes.plot(steps, values, color=curve.colour, alpha=0.35, linewidth=0.8)
    else:
        axes.scatter(steps, values, s=7, color=curve.colour, alpha=0.3, linewidths=0)
    if curve.choices:
        axes.scatter([], [], s=12, color=curve.colour, label=_with_shares(curve.label, values))
        return
    window = style.smoothing_window(len(values), period)
    middle = style.smoothed(values, window, median if curve.spiky else fmean)
    mark = "o" if len(values) == 1 else ""
    above = 3 if curve.line != "-" else 2  # a broken line hides nothing
    looks: dict[str, Any] = {"linewidth": 1.8, "linestyle": curve.line, "marker": mark, "zorder": above}
    axes.plot(steps, middle, color=curve.colour, label=curve.label, **looks)


def target_share(config: dict[str, Any]) -> tuple[float, str] | None:
    """(share, kind of contribution) that the algorithm in `config` aims at: `target` in `algorithm` or below,
    converted when its `measure` is P/N.
    """
    stack: list[Any] = [config.get("algorithm")]
    while stack:
        node = stack.pop()
        if isinstance(node, dict):
            target = finite(node.get("target"))
            if target is not None:
                share = target / (1.0 + target) if node.get("measure") == "ratio" else target
                return share, str(node.get("kind", "gradient"))
            stack.extend(node.values())
    return None


def _draw_target(axes: Axes, record: RunRecord) -> None:
    target = target_share(record.config)
    if target is not None:
        share, kind = target
        # The curves show the gradient; a search over the surrogate balances another quantity, whose target
        # these curves need not meet.
        label = f"target {share:.3g}" if kind == "gradient" else f"target {share:.3g} (of the {kind})"
        axes.axhline(share, color=style.INK, linewidth=1.0, linestyle=":", label=label)


def _draw_one(axes: Axes, record: RunRecord) -> None:
    axes.axhline(1.0, color=style.FAINT, linewidth=0.8, linestyle=":")


def _with_shares(label: str, values: list[float]) -> str:
    """A label that also says how often the most frequent values were chosen."""
    common = Counter(round(value, 3) for value in values).most_common(_MOST_CHOICES)
    return f"{label}: " + ", ".join(f"{value:g} in {count / len(values):.0%}" for value, count in common)


def _from_zero(axes: Axes, record: RunRecord) -> None:
    axes.set_ylim(bottom=0.0)


def _scale_grad_norm(axes: Axes, record: RunRecord) -> None:
    style.scale_from_zero(axes, record.series("train/grad_norm")[1])


def _overview_title(record: RunRecord) -> str:
    manifest = record.manifest
    parts = [manifest.get("experiment"), manifest.get("algorithm"), manifest.get("regime")]
    parts += [f"{key} {manifest[key]}" for key in ("staleness", "seed") if manifest.get(key) is not None]
    return "  |  ".join(str(part) for part in (*parts, manifest.get("status")) if part)
