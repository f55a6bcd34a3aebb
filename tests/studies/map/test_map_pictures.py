"""Pictures of the map: the algorithm is the colour, and no cell is left out."""

import pytest
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from tests.studies.map.made_up_map import METHODS

from bapo_lightning.report import style
from studies.colour_maps import difference_map
from studies.map.picture import MethodLook, draw_gap, draw_phases

DRAWN = {name: MethodLook(name.upper(), "bapo" if name == "better" else "grpo") for name in METHODS}


@pytest.fixture
def figures(monkeypatch):
    """The figures that are saved from now on."""
    found: list[Figure] = []
    monkeypatch.setattr(style, "save_png", lambda figure, path: found.append(figure) or path)
    return found


def test_a_difference_has_the_colour_of_the_algorithm_that_has_more(results, figures, tmp_path):
    draw_phases(results, "better", ["grpo", "wide"], DRAWN, tmp_path / "better.png")
    against_grpo, against_wide, *bars = figures[0].axes
    assert len(bars) == 2 and against_grpo.get_title(loc="left") == "table: BETTER\nagainst GRPO"
    colours = against_grpo.images[0].get_cmap()
    assert [to_hex(colours(end)).upper() for end in (0.0, 1.0)] == [
        style.algorithm_colour("grpo"),
        style.algorithm_colour("bapo"),
    ]
    texts = {text.get_text(): text.get_fontweight() for text in against_grpo.texts}
    assert texts == {"+0.100": "bold", "= +0.000": "normal"} and len(against_wide.texts) == 2


def test_algorithms_that_share_a_colour_are_told_apart():
    ends = [to_hex(difference_map("grpo", "grpo")(end)).upper() for end in (0.0, 1.0)]
    assert ends == [style.FAINT.upper(), style.algorithm_colour("grpo")]


def test_every_cell_that_passes_the_gate_has_its_dot_inside_the_axes(results, figures, tmp_path):
    told = [result for result in results if result.gate.is_passed]
    draw_gap(results, DRAWN, tmp_path / "gap.png")
    (axes,) = figures[0].axes
    dots = {round(float(line.get_xdata()[0])): line for line in axes.lines if line.get_marker() == "o"}
    assert len(dots) == len(METHODS) - 1
    for place, name in enumerate(METHODS[1:]):
        assert dots[place].get_ydata()[0] == pytest.approx(told[0].gap_closed[name].mean)
        assert dots[place].get_color().upper() == style.algorithm_colour(DRAWN[name].algorithm)
    low, high = axes.get_ylim()
    assert all(low < line.get_ydata()[0] < high for line in dots.values())
    assert "(0.30 to 0.30)" in figures[0].get_suptitle()


def test_a_map_without_a_cell_that_tells_says_so(results, figures, tmp_path):
    draw_gap(results[1:], DRAWN, tmp_path / "gap.png")
    assert [text.get_text() for text in figures[0].axes[0].texts] == ["no cell can tell methods apart"]
