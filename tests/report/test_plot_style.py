"""That readers can tell settings apart, however many there are, and algorithms at a glance."""

from __future__ import annotations

from colorsys import rgb_to_hls

from matplotlib.colors import to_rgb

from bapo_lightning.report.style import algorithm_colour, setting_looks


def hue_and_lightness(colour: str) -> tuple[float, float]:
    hue, lightness, _ = rgb_to_hls(*to_rgb(colour))
    return round(hue, 2), lightness


def test_the_algorithm_is_the_colour_and_its_settings_are_shades_from_light_to_dark() -> None:
    settings = {
        "grpo": "grpo",
        "bapo target=0.4": "bapo",
        "bapo target=0.5": "bapo",
        "bapo_rest": "bapo_rest",
    }
    looks = setting_looks(settings)
    assert looks["grpo"].colour.upper() == algorithm_colour("grpo") and looks["grpo"].line == "-"
    variants = [hue_and_lightness(looks[name].colour) for name in list(settings)[1:]]
    assert len({hue for hue, _ in variants}) == 1
    assert [lightness for _, lightness in variants] == sorted((one for _, one in variants), reverse=True)
    assert len({look.line for look in looks.values()}) == 3


def test_every_setting_has_a_look_of_its_own() -> None:
    settings = {f"grpo lr={rank}": "grpo" for rank in range(12)} | {"bapo": "bapo"}
    looks = setting_looks(settings)
    assert len({(look.colour, look.line) for look in looks.values()}) == len(settings)
