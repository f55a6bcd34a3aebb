"""Verdicts of the map on made-up curves whose answer is known."""

import pytest
from tests.studies.map.made_up_map import CELL, METHODS, write

from studies.map.cells import Measured, measured_file
from studies.map.page import render
from studies.map.verdicts import EQUAL, LESS, MORE, OPEN


def test_verdicts_are_paired_by_seed_and_adjusted(results):
    verdicts = {name: results[0].comparison(name, "grpo").verdict for name in METHODS[1:]}
    assert verdicts == {"narrow": LESS, "wide": MORE, "better": MORE, "same": EQUAL, "noisy": OPEN}
    assert results[0].comparison("better", "wide").verdict == EQUAL
    found = results[0].comparison("better", "grpo")
    assert found.difference.mean == pytest.approx(0.1) and found.adjusted >= found.p


def test_a_cell_in_which_bounds_make_no_difference_fails_the_gate(results):
    assert [result.gate.is_passed for result in results] == [True, False]
    assert list(results[0].gate.differences) == ["fresh - grpo", "narrow - grpo", "wide - grpo"]


def test_the_share_of_the_gap_that_is_closed(results):
    closed = {name: interval.mean for name, interval in results[0].gap_closed.items()}
    assert closed["wide"] == pytest.approx(0.5) and closed["narrow"] == pytest.approx(-0.5)


def test_figures_have_no_number_where_nothing_was_searched(results):
    assert results[0].figures["grpo"].rests is None
    assert results[0].figures["better"].rests == pytest.approx(0.3)
    assert results[0].figures["grpo"].collapse_rate == 0


def test_the_page_counts_the_cells_that_pass(results):
    page = render(results, {name: name.upper() for name in METHODS}, ["wide"], "8 seeds")
    assert "1 of 2 cells pass the gate" in page
    assert "| BETTER | 1 / 0 / 0 / 0 | 0 / 1 / 0 / 0 |" in page
    assert "(fails the gate)" in page


def test_seeds_of_the_gate_are_not_compared(tmp_path):
    write(tmp_path, CELL, "grpo", 0.0)
    path = measured_file(tmp_path, CELL, "grpo")
    assert len(Measured.read(path).area) == 8 and len(Measured.read(path, gate=True).area) == 4
