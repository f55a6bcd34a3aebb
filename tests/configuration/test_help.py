"""What `--help` prints: every choice with what it is."""

from tests.configuration.compositions import CONF, names

from bapo_lightning.cli.figures import help_text as help_of_figures
from bapo_lightning.configuration.help import help_text, listed
from bapo_lightning.report.figures.catalogue import figure_names


def test_help_lists_every_choice_with_what_it_is():
    text = help_text()
    for group in ("algorithm", "regime", "experiment", "logger", "correction", "debug"):
        for name in names(group):
            line = next(line for line in text.splitlines() if line.strip().startswith(f"{name} "))
            assert len(line.split()) > 3, f"{group}/{name}.yaml needs a first line that says what it is"


def test_meanings_stand_in_one_column_whatever_the_names():
    lines = listed({"a": "short", "a_name_of_more_than_18": "long"})
    assert [line.index(word) for line, word in zip(lines, ("short", "long"), strict=True)] == [27, 27]


def test_help_lists_every_figure_by_its_title():
    lines = help_of_figures().splitlines()
    for name in figure_names(CONF):
        assert any(len(line.split()) > 3 for line in lines if line.strip().startswith(f"{name} ")), name
    assert not any("protocol" in line for line in lines)
