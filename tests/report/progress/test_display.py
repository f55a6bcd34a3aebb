"""The live display, drawn into a text as into a terminal."""

import io
import re

import pytest
from rich.console import Console

from bapo_lightning.phases import phase
from bapo_lightning.report.progress import display
from bapo_lightning.report.progress.display import Place, hidden, on_terminal, shown

SHOW_CURSOR = "\x1b[?25h"


@pytest.fixture
def terminal(monkeypatch):
    console = Console(file=io.StringIO(), force_terminal=True, width=80, color_system=None)
    monkeypatch.setattr(display, "get_console", lambda: console)
    monkeypatch.setattr(display, "on_terminal", lambda: True)
    return console


def drawn(console):
    """Everything that was drawn, without control sequences."""
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", console.file.getvalue())


def test_parts_stand_in_their_places_and_go_away(terminal):
    with shown(Place.PHASE, "below"), shown(Place.RUN, "above"):
        display._update()
        assert "above\nbelow" in drawn(terminal)
        print("printed meanwhile")
    assert "printed meanwhile" in drawn(terminal)
    assert SHOW_CURSOR in terminal.file.getvalue()
    assert display._live is None and display._parts == {}


def test_a_part_takes_the_place_of_another_for_a_while(terminal):
    with shown(Place.RUN, "outer"):
        with shown(Place.RUN, "inner"):
            assert display._parts == {Place.RUN: "inner"}
        assert display._parts == {Place.RUN: "outer"}


def test_the_display_is_hidden_for_others_and_comes_back(terminal):
    with shown(Place.RUN, "bar"):
        with hidden():
            assert display._live is None
            with hidden(), shown(Place.PHASE, "phase"):
                assert display._live is None
        assert display._live is not None


def test_an_error_gives_the_terminal_back(terminal):
    with pytest.raises(KeyboardInterrupt), shown(Place.RUN, "bar"):
        raise KeyboardInterrupt
    assert display._live is None and SHOW_CURSOR in terminal.file.getvalue()


def test_the_phases_are_shown(terminal):
    with display.phases_shown(), phase("sampling", 128):
        display._update()
    assert "sampling 128" in drawn(terminal)
    with display.phases_shown(wanted=False):
        assert display._live is None


def test_nothing_is_drawn_where_there_is_no_terminal(capsys, monkeypatch):
    assert not on_terminal()
    with shown(Place.RUN, "bar"), display.phases_shown():
        print("a line")
    assert capsys.readouterr().out == "a line\n"
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    monkeypatch.setenv("TERM", "dumb")
    assert not on_terminal()
