"""Readers can tell settings apart, and algorithms at a glance."""

import re
from colorsys import rgb_to_hls
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from matplotlib.colors import to_rgb

import bapo_lightning.report
from bapo_lightning.report.run.charts import colours_of
from bapo_lightning.report.style import (
    ALGORITHM_COLOURS,
    FAINT,
    algorithm_colour,
    algorithm_rank,
    draw_legend,
    new_figure,
    scale_from_zero,
    seeds_text,
    setting_looks,
    shades,
    style_axes,
)


def hue_and_lightness(colour):
    hue, lightness, _ = rgb_to_hls(*to_rgb(colour))
    return round(hue, 2), lightness


def test_the_algorithm_is_the_colour_and_its_settings_are_shades_from_light_to_dark():
    settings = {
        "grpo": "grpo", "bapo target=0.4": "bapo", "bapo target=0.5": "bapo", "bapo_rest": "bapo_rest",
    }  # fmt: skip
    looks = setting_looks(settings)
    assert looks["grpo"].colour.upper() == algorithm_colour("grpo") and looks["grpo"].line == "-"
    variants = [hue_and_lightness(looks[name].colour) for name in list(settings)[1:]]
    assert len({hue for hue, _ in variants}) == 1
    assert [lightness for _, lightness in variants] == sorted((one for _, one in variants), reverse=True)
    assert len({look.line for look in looks.values()}) == 3
    many = {f"grpo lr={rank}": "grpo" for rank in range(12)} | {"bapo": "bapo"}
    assert len(set(setting_looks(many).values())) == len(many)


# Machado, Oliveira, Fernandes (2009), doi 10.1109/TVCG.2009.113: colours as colour-blind readers see them.
VISION = {
    "protanopia": (
        (0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216), (-0.003882, -0.048116, 1.051998),
    ),
    "deuteranopia": (
        (0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413), (-0.01182, 0.04294, 0.968881),
    ),
    "tritanopia": (
        (1.255528, -0.076749, -0.178779), (-0.078411, 0.930809, 0.147602), (0.004733, 0.691367, 0.3039),
    ),
}  # fmt: skip
TO_XYZ = np.array([
    [0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.072175], [0.0193339, 0.119192, 0.9503041],
])  # fmt: skip


def seen(colour, vision):
    """CIELAB of a colour as somebody with this vision sees it."""
    given = np.array(to_rgb(colour))
    linear = np.where(given <= 0.04045, given / 12.92, ((given + 0.055) / 1.055) ** 2.4)
    x, y, z = np.cbrt(TO_XYZ @ np.clip(np.array(VISION[vision]) @ linear, 1e-4, 1) / [0.95047, 1, 1.08883])
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


@pytest.mark.parametrize("vision", VISION)
@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_colour_blind_readers_tell_lines_apart_by_colour_or_by_dashes(vision, count):
    algorithms = ("grpo", "dapo", "bapo", "zebra", "acpo", "gspo")
    looks = setting_looks({f"{name} {rank}": name for name in algorithms for rank in range(count)}).values()
    alike = [(one.colour, other.colour) for one, other in combinations(looks, 2) if one.line == other.line]
    assert min(np.linalg.norm(seen(one, vision) - seen(other, vision)) for one, other in alike) > 8


def test_an_algorithm_keeps_its_colour_and_place():
    algorithms = ["zebra", "bapo", "bapo_authors_code", "grpo", "dapo"]
    assert [algorithm_colour(name) for name in algorithms[1:]] == ["#0072B2", "#CC79A7", "#D55E00", "#009E73"]
    assert algorithm_colour("zebra") == algorithm_colour("zebra")
    assert sorted(algorithms, key=algorithm_rank) == ["grpo", "dapo", "bapo", "bapo_authors_code", "zebra"]


def test_colours_are_written_in_one_place():
    package = Path(bapo_lightning.report.__path__[0])
    texts = {path: path.read_text() for path in package.rglob("*.py")}
    written = [path for path, text in texts.items() if re.search(r"#[0-9A-Fa-f]{6}|tab:|\bC\d\b", text)]
    assert written == [package / "style.py"]
    assert not [path for path, text in texts.items() if re.search(r"import pyplot|matplotlib\.pyplot", text)]
    colours = {colour.lower() for colour in ALGORITHM_COLOURS.values()}
    for template in package.rglob("templates/*"):
        assert not colours & set(re.findall(r"#[0-9a-f]{6}", template.read_text().lower())), template


@pytest.mark.parametrize("algorithm", list(ALGORITHM_COLOURS))
def test_everything_about_a_run_has_a_shade_of_its_algorithm(algorithm):
    hue, _ = hue_and_lightness(algorithm_colour(algorithm))
    for colour in colours_of(algorithm).values():
        red, green, blue = to_rgb(colour)
        is_grey = max(red, green, blue) - min(red, green, blue) < 0.1
        assert is_grey or hue_and_lightness(colour)[0] == pytest.approx(hue, abs=0.011), colour


def test_staler_is_darker():
    lightness = [hue_and_lightness(colour)[1] for colour in shades(algorithm_colour("grpo"), 4)]
    assert lightness == sorted(lightness, reverse=True) and len(set(lightness)) == 4
    positive, negative = shades(algorithm_colour("grpo"), 2)
    assert hue_and_lightness(positive)[1] > hue_and_lightness(negative)[1]


@pytest.mark.parametrize("count", [1, 4])
def test_a_legend_hides_neither_data_nor_labels(count):
    figure = new_figure(6.4, 4.0)
    axes = figure.subplots()
    style_axes(axes, "Title", "x", "y")
    for number in range(count):
        axes.plot([0, 1], [0, 1], color=FAINT, label=f"curve {number}")
    draw_legend(axes)
    figure.draw_without_rendering()
    box = axes.get_legend().get_window_extent()
    assert 0 < box.y0 < box.y1 < axes.xaxis.label.get_window_extent().y0


def test_spikes_make_an_axis_logarithmic_and_zeros_are_counted():
    axes = new_figure(4.0, 3.0).subplots()
    style_axes(axes, "", "", "L2 norm")
    scale_from_zero(axes, [1.0] * 9 + [0.0, 100.0])
    assert (axes.get_yscale(), axes.get_ylabel()) == ("log", "L2 norm, log scale, without 1 zero")
    axes.plot([0, 1, 2], [1.0, 0.0, 100.0])
    assert axes.get_ylim()[0] > 0
    plain = new_figure(4.0, 3.0).subplots()
    scale_from_zero(plain, [0.0, 2.0])
    assert (plain.get_yscale(), plain.get_ylim()[0]) == ("linear", 0.0)


def test_the_number_of_seeds_is_said_once():
    assert [seeds_text(counts) for counts in ([5, 5], [1], [2, 5])] == ["5 seeds", "1 seed", "2 to 5 seeds"]
