"""That readers can tell settings apart, however many there are."""

from __future__ import annotations

from bapo_lightning.report.style import algorithm_colour, line_styles, setting_colours


def test_an_algorithm_with_one_setting_keeps_its_colour() -> None:
    settings = {"grpo": "grpo", "bapo target=0.4": "bapo", "bapo target=0.5": "bapo"}
    colours = setting_colours(settings, list(settings))
    assert colours["grpo"] == algorithm_colour("grpo")
    assert len(set(colours.values())) == 3


def test_settings_beyond_the_number_of_colours_differ_in_their_lines() -> None:
    settings = {f"grpo lr={rank}": "grpo" for rank in range(12)} | {"bapo": "bapo"}
    colours = setting_colours(settings, list(settings))
    lines = line_styles(colours)
    looks = {(colours[setting], lines[setting]) for setting in settings}
    assert len(set(colours.values())) < len(looks) == len(settings)
    assert lines["grpo lr=0"] == "-"
