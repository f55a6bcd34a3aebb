"""The picture of a comparison: intervals in the scale of their axis, and a legend that names seeds once."""

import pytest

from bapo_lightning.report.comparison.page import draw_comparison
from bapo_lightning.report.comparison.settings import collect
from bapo_lightning.report.comparison.table import compare

NORMS, ACCURACIES = (0.1, 1.0, 10.0), (0.9, 1.0, 1.0)


@pytest.fixture
def figure(make_run):
    """The picture of three runs of GRPO, of one update each."""
    folders = [
        make_run(
            f"run{seed}",
            rows=[{"step": 0, "train/reward": 0.5, "train/grad_norm": norm, "val/sums/avg@4": accuracy}],
            algorithm="grpo",
            seed=seed,
        )
        for seed, (norm, accuracy) in enumerate(zip(NORMS, ACCURACIES, strict=True))
    ]
    return draw_comparison(compare(collect(folders)))


def panel(figure, title):
    return next(axes for axes in figure.axes if axes.get_title(loc="left") == title)


def ends(axes):
    """Ends of the only interval."""
    (bar,) = axes.containers
    ((low, high),) = (tuple(point[1] for point in part) for part in bar[2][0].get_segments())
    return low, high


def test_a_logarithmic_interval_is_as_wide_above_its_mean_as_below(figure):
    axes = panel(figure, "Gradient norm")
    low, high = ends(axes)
    assert axes.get_yscale() == "log" and 0 < low < 0.1 and low * high == pytest.approx(1.0)


def test_an_accuracy_ends_at_one(figure):
    assert ends(panel(figure, "Held-out accuracy"))[1] == 1.0


def test_the_legend_names_settings_and_says_the_seeds_once(figure):
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["grpo"]
    assert "over 3 seeds" in legend.get_title().get_text()
