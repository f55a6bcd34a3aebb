"""Figure 8: the bounds that were chosen are drawn as a distribution, since a mean of two ends is neither."""

import numpy as np
import pytest
from matplotlib.collections import QuadMesh

from bapo_lightning.tools.comparison.runs import Run
from studies.figures.bounds import draw_bounds
from studies.figures.catalogue import read_figure, read_protocol
from studies.figures.values import CURVES

FIGURE = read_figure("8", read_protocol())
STALENESS, BATCHES = 8, 4


def run(raised):
    """A run whose search goes to its end in the first `raised` updates on each rollout batch, else rests."""
    steps = list(range(STALENESS * BATCHES))
    ends = [step % STALENESS < raised for step in steps]
    curves = {name: (steps, [0.5] * len(steps)) for name in CURVES}
    curves |= {"bapo/clip_high": (steps, [3.0 if end else 1.2 for end in ends])}
    curves |= {"bapo/clip_low": (steps, [0.9 if end else 0.6 for end in ends])}
    return Run("run", None, algorithm="bapo", staleness=STALENESS, curves=curves)


@pytest.fixture(scope="module")
def canvas():
    return draw_bounds(FIGURE, {"bapo_8": [run(4), run(2)], "bapo_target_40": [run(1), run(1)]})


def titled(canvas, start):
    return next(i for i, axes in enumerate(canvas.axes) if axes.get_title(loc="left").startswith(start))


def shares(canvas, title):
    """The drawn shares, [classes of values, rollout batches]."""
    drawn = canvas.axes[titled(canvas, title)].collections
    (mesh,) = (found for found in drawn if isinstance(found, QuadMesh))
    return np.asarray(mesh.get_array()).reshape(-1, BATCHES)


@pytest.mark.parametrize("bound", ["Upper bound", "Lower bound"])
def test_every_batch_shows_how_often_each_value_was_chosen(canvas, bound):
    found = shares(canvas, f"{bound}, target 0.5")
    assert found.sum(0) == pytest.approx(1.0)
    assert found[0] == pytest.approx(10 / 16) and found[-1] == pytest.approx(6 / 16)
    assert not found[1:-1].any(), "nothing is drawn between the ends, where no bound was"
    assert shares(canvas, f"{bound}, target 0.4")[-1] == pytest.approx(1 / 8)


def test_the_shares_of_all_updates_stand_next_to_it_in_numbers(canvas):
    beside = canvas.axes[titled(canvas, "Upper bound, target 0.5") + 1]
    assert [text.get_text().strip() for text in beside.texts] == ["62%", "38%"]
    assert [bar.get_width() for bar in beside.patches][-1] == pytest.approx(6 / 16)


def test_the_extremes_lie_inside_the_axes_and_no_mean_is_drawn(canvas):
    axes = canvas.axes[titled(canvas, "Upper bound, target 0.5")]
    low, high = axes.get_ylim()
    assert low < 1.2 < 3.0 < high and not axes.lines
    lined = {axes.get_title(loc="left") for axes in canvas.axes if axes.lines}
    assert lined == {"Positive share of the gradient", "Updates that meet the target"}


def test_runs_without_bounds_leave_panels_that_say_so():
    nothing = Run("run", None, algorithm="grpo", staleness=8, curves={name: ([], []) for name in CURVES})
    drawn = draw_bounds(FIGURE, {"bapo_8": [nothing], "bapo_target_40": []})
    assert sum(text.get_text() == "was not recorded" for axes in drawn.axes for text in axes.texts) == 6
