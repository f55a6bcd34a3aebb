"""The live display, drawn into a text as into a terminal; its lines, and tables, at every width."""

import io
import re

import pytest
from rich.console import Console
from rich.table import Table

from bapo_lightning.report.progress import display
from bapo_lightning.report.progress.display import (
    Pace,
    PhaseLine,
    Place,
    bar_line,
    clock,
    folded,
    hidden,
    on_terminal,
    phase_text,
    shown,
    wrapped,
)
from bapo_lightning.report.progress.terminal import fits, in_parts
from bapo_lightning.system.phases import Phase, advance, phase

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
    with display.displayed_phases(), phase("sampling", 128):
        display._update()
    assert "sampling 128" in drawn(terminal)
    with display.displayed_phases(wanted=False):
        assert display._live is None


def test_nothing_is_drawn_where_there_is_no_terminal(capsys, monkeypatch):
    assert not on_terminal()
    with shown(Place.RUN, "bar"), display.displayed_phases():
        print("a line")
    assert capsys.readouterr().out == "a line\n"
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    monkeypatch.setenv("TERM", "dumb")
    assert not on_terminal()


def console_of(width):
    return Console(file=io.StringIO(), width=width, color_system=None)


def lines(part, width):
    console = console_of(width)
    console.print(part)
    return console.file.getvalue().splitlines()


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0 s"), (59.9, "59 s"), (112, "1:52"), (3599, "59:59"), (90_061, "25:01:01")]
)
def test_durations(seconds, text):
    assert clock(seconds) == text


def test_a_phase_says_how_far_it_is_and_from_one_second_on_how_long_it_lasts():
    outer, inner = Phase("validation", since=0.0), Phase("sampling", 128, since=100.0)
    assert phase_text([outer], 0.5) == "validation"
    assert phase_text([outer, inner], 100.9) == "validation: sampling 128"
    inner.done = 40
    assert phase_text([outer, inner], 112.0) == "validation: sampling 40/128, 12 s"


@pytest.mark.parametrize("width", [20, 60, 80])
def test_the_line_of_phases_is_one_line_however_long(width):
    assert lines(PhaseLine(), width) == [""]
    with phase("waiting for samples of a very long rollout batch"), phase("syncing weights", 10):
        advance(3)
        (line,) = lines(PhaseLine(), width)
    assert line.startswith("waiting for samples") and len(line) <= width


@pytest.mark.parametrize("width", [48, 60, 79, 80, 120])
@pytest.mark.parametrize("left", [None, 7.0, 400_000.0])
def test_a_bar_is_as_wide_as_the_terminal(width, left):
    (line,) = lines(bar_line("update 1234/4000", 1234, 4000, 36_000.0, left), width)
    assert line.startswith("update 1234/4000 ") and len(line) <= width
    assert line.rstrip().endswith("10:00:00" if left is None else "left")


def test_lines_break_between_parts_only():
    parts = ["reward 0.500", "entropy 0.250", "share -"]
    assert wrapped(parts, 80) == ["  ".join(parts)]
    assert wrapped(parts, 27) == ["reward 0.500  entropy 0.250", "share -"]
    assert wrapped(parts, 5) == parts
    assert wrapped([], 80) == []


def test_a_text_is_folded_below_its_last_column_or_further_inside():
    text = "head\n\n  weights       3.81   4 B x 7,615,616,512 parameters\n  a sentence of several words"
    assert folded(text, 80) == text
    assert folded(text, 40).splitlines() == [
        "head", "", "  weights       3.81   4 B x", "                       7,615,616,512",
        "                       parameters", "  a sentence of several words",
    ]  # fmt: skip
    narrow = folded("  a sentence of several words", 20).splitlines()
    assert narrow == ["  a sentence of", "        several", "        words"]


def test_the_time_left_counts_whole_cycles_of_one_rollout_and_four_updates():
    pace = Pace(done=0, cycle=4, now=100.0)
    now = 100.0
    assert pace.left(12, now) is None
    for batch in range(3):
        now += 30  # samples
        for update in range(4):
            now += 1
            pace.note(4 * batch + update + 1, now)
            if (batch, update) != (0, 0):  # after one update its own time cannot be told from the rollout's
                assert pace.left(12, now) == pytest.approx(100 + 3 * 34 - now)
    assert pace.left(12, now) == 0


def test_a_resumed_run_is_measured_from_where_it_goes_on():
    pace = Pace(done=8, cycle=4, now=0.0)
    pace.note(12, 34.0)
    assert pace.left(20, 34.0) == pytest.approx(68)
    assert pace.left(20, 40.0) == pytest.approx(62)
    assert pace.left(20, 500.0) == 0


def table(columns):
    made = Table.grid(padding=(0, 1, 0, 0))
    for _ in ("name", *columns):
        made.add_column(no_wrap=True)
    made.add_row("name", *(f"value {number}" for number in columns))
    return made


@pytest.mark.parametrize(
    ("width", "parts"), [(80, [4]), (36, [4]), (35, [3, 1]), (22, [2, 2]), (13, [1, 1, 1, 1]), (5, [1] * 4)]
)
def test_each_part_of_a_table_has_as_many_columns_as_fit_and_none_is_lost(width, parts):
    console = console_of(width)
    made = list(in_parts(table, 4, console))
    assert [len(part.columns) - 1 for part in made] == parts
    assert fits(table(range(4)), console) == (len(parts) == 1)
    printed = [line for part in made for line in lines(part, 80)]
    assert [f"value {number}" in "".join(printed) for number in range(4)] == [True] * 4
