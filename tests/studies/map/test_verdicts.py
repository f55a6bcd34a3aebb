"""Verdicts and pictures of a map on made-up curves whose answer is known."""

import numpy as np
import pytest
from matplotlib.colors import to_hex

from bapo_lightning.report import style
from bapo_lightning.report.intervals import Interval
from bapo_lightning.report.paired import EQUAL, LESS, MORE, UNRESOLVED
from studies.colour_maps import difference_map
from studies.map.cells import FIRST_COMPARED, FRESH, MapCell, Measured, measured_file
from studies.map.page import cell_table, render
from studies.map.picture import MethodLook, draw_gap, draw_phases
from studies.map.verdicts import GateResult, read_results

CELL = MapCell("table", 0.1, 8, (("wrong_tokens", 9),))
OTHER = MapCell("table", 0.1, 32, (("wrong_tokens", 9),))
CURVES = [
    *("reward", "entropy", "pass_at_k", "key_probability", "worst_quarter", "low", "high", "target_met"),
    *("rests", "ends", "positive_share", "positive_share_unclipped", "clip_fraction"),
    *("clip_fraction_positive", "clip_fraction_negative", "grad_norm"),
]
METHODS = ["grpo", "narrow", "wide", "better", "same", "noisy"]
GAIN = {FRESH: 0.2, "grpo": 0.0, "narrow": -0.1, "wide": 0.1, "better": 0.1, "same": 0.0, "noisy": 0.01}
DRAWN = {name: MethodLook(name.upper(), "bapo" if name == "better" else "grpo") for name in METHODS}


def write(folder, cell, method, gain, spread=0.001):
    """A method whose reward is GRPO's plus `gain`, give or take `spread` from seed to seed."""
    seeds = np.array([*range(4), *range(FIRST_COMPARED, FIRST_COMPARED + 8)])
    luck = 0.05 * np.sin(seeds)[:, None]  # of the seed, alike for all methods
    period = 3 if method == FRESH else 2  # so that no two methods differ by the same in all seeds
    own = spread * np.where(np.arange(len(seeds)) % period, 1, -1)[:, None]
    reward = np.full((len(seeds), 5), 0.5) + luck + gain + own
    curves = {name: np.full_like(reward, 0.3) for name in CURVES} | {"reward": reward}
    if method != "better":
        curves |= {"rests": np.full_like(reward, np.nan), "ends": np.full_like(reward, np.nan)}
    path = measured_file(folder, cell, method)
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez(path, seeds=seeds, **curves)


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """A map of two cells: in the first bounds matter, in the second nothing does."""
    folder = tmp_path_factory.mktemp("map")
    for cell, scale in ((CELL, 1.0), (OTHER, 0.0)):
        for method, gain in GAIN.items():
            spread = 0.1 if method == "noisy" else 0.0 if method == "grpo" else 0.001
            if method == FRESH and cell is OTHER:
                continue  # that of the other cell serves both
            write(folder, cell, method, gain * scale, spread)
    return read_results(folder, [CELL, OTHER], METHODS, ["narrow", "wide"], ["wide"])


def test_verdicts_are_paired_by_seed_and_adjusted(results):
    verdicts = {name: results[0].comparison(name, "grpo").verdict for name in METHODS[1:]}
    assert verdicts == {"narrow": LESS, "wide": MORE, "better": MORE, "same": EQUAL, "noisy": UNRESOLVED}
    assert results[0].comparison("better", "wide").verdict == EQUAL
    found = results[0].comparison("better", "grpo")
    assert found.difference.mean == pytest.approx(0.1) and found.adjusted >= found.p


def test_p_values_are_adjusted_over_all_comparisons_of_the_map(results):
    every = [comparison for result in results for comparison in result.comparisons]
    given = [comparison for comparison in every if comparison.p is not None]
    smallest = min(given, key=lambda comparison: comparison.p)
    assert len(given) > 10 and smallest.adjusted == pytest.approx(len(given) * smallest.p)


@pytest.mark.parametrize(("cost", "bounds", "is_passed"), [
    (Interval(0.1, 0.01, 8), Interval(-0.1, 0.01, 8), True),
    (Interval(0.1, 0.01, 8), Interval(0.0004, 0.0003, 8), False),
    (Interval(0.009, 0.001, 8), Interval(-0.1, 0.01, 8), False),
    (Interval(-0.1, 0.01, 8), Interval(-0.1, 0.01, 8), False),
    (Interval(0.1, 0.2, 8), Interval(-0.1, 0.01, 8), False),
    (Interval(0.1, 0.01, 2), Interval(-0.1, 0.01, 2), False),
])  # fmt: skip
def test_the_gate_asks_for_a_size_in_addition_to_significance(cost, bounds, is_passed):
    assert GateResult({"fresh - grpo": cost, "narrow - grpo": bounds}).is_passed == is_passed


def test_a_cell_in_which_bounds_make_no_difference_fails_the_gate(results):
    assert [result.gate.is_passed for result in results] == [True, False]
    assert list(results[0].gate.differences) == ["fresh - grpo", "narrow - grpo", "wide - grpo"]


def test_the_share_of_the_gap_that_is_closed(results):
    closed = {name: interval.value for name, interval in results[0].gap_closed.items()}
    assert closed["wide"] == pytest.approx(0.5, abs=0.01)
    assert closed["narrow"] == pytest.approx(-0.5, abs=0.01)
    assert results[0].gap_closed["noisy"].lower < 0 < results[0].gap_closed["noisy"].upper


def test_figures_have_no_number_where_nothing_was_searched(results):
    assert results[0].figures["grpo"].rests is None
    assert results[0].figures["better"].rests == pytest.approx(0.3)
    assert results[0].figures["grpo"].collapse_rate == 0


def test_the_page_counts_the_cells_that_pass(results):
    labels = {name: name.upper() for name in METHODS}
    page = render(results, labels, ["wide"], "8 seeds")
    assert "1 of 2 cells pass the gate" in page
    assert "| BETTER | 1 / 0 / 0 / 0 | 0 / 1 / 0 / 0 |" in page
    heads, rows = cell_table(results, labels)
    assert [row[heads.index("passes the gate")] for row in rows] == ["yes", "no"]


def test_seeds_of_the_gate_are_not_compared(tmp_path):
    write(tmp_path, CELL, "grpo", 0.0)
    path = measured_file(tmp_path, CELL, "grpo")
    assert len(Measured.read(path).area) == 8 and len(Measured.read(path, gate=True).area) == 4


@pytest.fixture
def figures(monkeypatch):
    """The figures that are saved from now on."""
    found = []
    monkeypatch.setattr(style, "save_png", lambda figure, path: found.append(figure) or path)
    return found


def test_a_difference_has_the_colour_of_the_algorithm_that_has_more(results, figures, tmp_path):
    draw_phases(results, "better", ["grpo", "wide"], DRAWN, tmp_path / "better.png")
    against_grpo, against_wide, *bars = figures[0].axes
    assert len(bars) == 2 and against_grpo.get_title(loc="left") == "table: BETTER\nagainst GRPO"
    colours = against_grpo.images[0].get_cmap()
    expected = [style.algorithm_colour(name) for name in ("grpo", "bapo")]
    assert [to_hex(colours(end)).upper() for end in (0.0, 1.0)] == expected
    texts = {text.get_text(): text.get_fontweight() for text in against_grpo.texts}
    assert texts == {"+0.100": "bold", "= +0.000": "normal"} and len(against_wide.texts) == 2


def test_algorithms_that_share_a_colour_are_distinguished():
    ends = [to_hex(difference_map("grpo", "grpo")(end)).upper() for end in (0.0, 1.0)]
    assert ends == [style.FAINT.upper(), style.algorithm_colour("grpo")]


def test_every_cell_that_passes_the_gate_has_its_dot_inside_the_axes(results, figures, tmp_path):
    told = [result for result in results if result.gate.is_passed]
    draw_gap(results, DRAWN, tmp_path / "gap.png")
    (axes,) = figures[0].axes
    dots = {round(float(line.get_xdata()[0])): line for line in axes.lines if line.get_marker() == "o"}
    assert len(dots) == len(METHODS) - 1
    for place, name in enumerate(METHODS[1:]):
        assert dots[place].get_ydata()[0] == pytest.approx(told[0].gap_closed[name].value)
        assert dots[place].get_color().upper() == style.algorithm_colour(DRAWN[name].algorithm)
    low, high = axes.get_ylim()
    assert all(low < line.get_ydata()[0] < high for line in dots.values())
    assert "(0.30 to 0.30)" in figures[0].get_suptitle()


def test_a_map_without_a_cell_that_tells_says_so(results, figures, tmp_path):
    draw_gap(results[1:], DRAWN, tmp_path / "gap.png")
    assert [text.get_text() for text in figures[0].axes[0].texts] == ["no cell can tell methods apart"]
