"""Curves and bars keep to what their quantities can be, and say once what they are means of."""

import numpy as np
import pytest

from bapo_lightning.report.metrics import HELD_OUT
from bapo_lightning.tools.comparison.runs import Run
from studies.figures.catalogue import read_figure, read_protocol
from studies.figures.means import draw_bars, draw_curves, draw_shares
from studies.figures.values import CURVES

PROTOCOL = read_protocol()


def run(algorithm, values):
    """A run of 16 updates with constant metrics."""
    steps = list(range(16))
    curves = {name: (steps, [values.get(name, 0.5)] * 16) for name in CURVES}
    return Run("run", None, algorithm=algorithm, staleness=8, curves=curves)


def figure_and_runs(name, metric, values):
    figure = read_figure(name, PROTOCOL)
    runs = {
        variant: [run(PROTOCOL.variants[variant].overrides["algorithm"], {metric: value}) for value in values]
        for variant in figure.variants
    }
    return figure, runs


def ends_of_bands(canvas, title):
    (axes,) = (axes for axes in canvas.axes if axes.get_title(loc="left") == title)
    return np.concatenate([path.vertices[:, 1] for band in axes.collections for path in band.get_paths()])


def test_the_interval_of_a_share_ends_at_all_and_nothing():
    figure, runs = figure_and_runs("11", HELD_OUT, [0.9, 1.0, 1.0])
    bars = draw_bars(figure, runs)
    segments = [part for bar in bars.axes[0].containers if hasattr(bar, "has_yerr") for part in bar[2]]
    assert max(part.get_segments()[0][1][1] for part in segments) == 1.0
    figure, runs = figure_and_runs("2", "train/clip_fraction", [0.0, 0.0, 0.1])
    assert ends_of_bands(draw_curves(figure, runs), "Clipped tokens").min() == 0.0


def test_a_band_on_a_logarithmic_axis_is_as_wide_above_its_mean_as_below():
    figure, runs = figure_and_runs("2", "train/grad_norm", [0.1, 1.0, 10.0])
    canvas = draw_curves(figure, runs)
    band = ends_of_bands(canvas, "Gradient norm")
    assert band.min() > 0 and band.min() * band.max() == pytest.approx(1.0)


def test_the_legend_says_once_what_lines_are_means_of():
    figure, runs = figure_and_runs("2", "train/reward", [0.4, 0.6])
    (legend,) = draw_curves(figure, runs).legends
    assert legend.get_title().get_text() == "GRPO under staleness: mean over 2 seeds, 95 % band"
    assert [text.get_text() for text in legend.get_texts()] == [f"GRPO, staleness {n}" for n in (1, 2, 4, 8)]
    figure, runs = figure_and_runs("4", "train/reward", [0.4, 0.6])
    shares = draw_shares(figure, runs)
    assert not any(axes.get_legend() for axes in shares.axes) and len(shares.legends[0].get_texts()) == 2
