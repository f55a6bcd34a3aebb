"""What `--help` prints: every choice with what it is."""

from tests.configuration.compositions import names

from bapo_lightning.configuration.help import help_text, listed


def test_help_lists_every_choice_with_what_it_is():
    text = help_text()
    for group in ("algorithm", "regime", "experiment", "logger", "correction", "debug"):
        for name in names(group):
            line = next(line for line in text.splitlines() if line.strip().startswith(f"{name} "))
            assert len(line.split()) > 3, f"{group}/{name}.yaml needs a first line that says what it is"


def test_meanings_stand_in_one_column_whatever_the_names():
    lines = listed({"a": "short", "a_name_of_more_than_18": "long"})
    assert [line.index(word) for line, word in zip(lines, ("short", "long"), strict=True)] == [27, 27]
