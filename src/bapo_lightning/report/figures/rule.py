"""The Entropy-Clip Rule against the measured change of entropy: a panel for each variant, a dot for each
measured update.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from bapo_lightning.report.comparison.runs import Run
from bapo_lightning.report.figures.catalogue import Figure
from bapo_lightning.report.figures.values import rule_pairs
from bapo_lightning.report.plot_style import BLUE, INK, new_figure, save_png, say_missing, style_axes

_KEPT = 0.98  # share of the dots within the axes; a few large ones would hide the others


def draw_entropy_rule(figure: Figure, runs: Mapping[str, Sequence[Run]], path: Path) -> Path:
    """Draws predicted against measured entropy change of the same tokens in one update."""
    canvas = new_figure(4.0 * len(figure.variants), 4.2)
    for axes, variant in zip(
        canvas.subplots(1, len(figure.variants), squeeze=False)[0], figure.variants, strict=True
    ):
        pairs = [pair for run in runs[variant] for pair in rule_pairs(run)]
        style_axes(axes, figure.labels[variant], "predicted by Eq. 6 [1e-4 nats]", "measured [1e-4 nats]")
        if not pairs:
            say_missing(axes, "was not measured (callbacks.entropy_rule.every)")
            continue
        xs, ys = [1e4 * predicted for predicted, _ in pairs], [1e4 * measured for _, measured in pairs]
        axes.scatter(xs, ys, s=9, alpha=0.35, color=BLUE, linewidths=0)
        for values, limit in ((xs, axes.set_xlim), (ys, axes.set_ylim)):
            reach = sorted(abs(value) for value in values)[int(_KEPT * (len(values) - 1))] or 1.0
            limit(-1.1 * reach, 1.1 * reach)
        axes.axhline(0, color=INK, linewidth=0.8)
        axes.axvline(0, color=INK, linewidth=0.8)
        agreeing = sum((x > 0) == (y > 0) for x, y in zip(xs, ys, strict=True))
        text = f"same sign in {agreeing / len(pairs):.0%} of {len(pairs)} updates"
        axes.text(0.98, 0.02, text, transform=axes.transAxes, ha="right", fontsize=9, color=INK)
    return save_png(canvas, path)
