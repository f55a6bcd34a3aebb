"""Verdicts of the map on made-up curves whose answer is known."""

import numpy as np
import pytest

from bapo_lightning.report.map.cells import FIRST_COMPARED, FRESH, Cell, Measured, measured_file
from bapo_lightning.report.map.page import render
from bapo_lightning.report.map.verdicts import EQUAL, LESS, MORE, OPEN, read_results

CELL = Cell("table", 0.1, 8, (("wrong_tokens", 9),))
OTHER = Cell("table", 0.1, 32, (("wrong_tokens", 9),))
CURVES = [
    *("reward", "entropy", "pass_at_k", "key_probability", "worst_quarter", "low", "high", "target_met"),
    *("rests", "ends", "positive_share", "positive_share_unclipped", "clip_fraction"),
    *("clip_fraction_positive", "clip_fraction_negative", "grad_norm"),
]
METHODS = ["grpo", "narrow", "wide", "better", "same", "noisy"]
GAIN = {FRESH: 0.2, "grpo": 0.0, "narrow": -0.1, "wide": 0.1, "better": 0.1, "same": 0.0, "noisy": 0.01}


def write(folder, cell, method, gain, spread=0.001):
    """A method whose reward is GRPO's plus `gain`, give or take `spread` from seed to seed."""
    seeds = np.array([*range(4), *range(FIRST_COMPARED, FIRST_COMPARED + 8)])
    luck = 0.05 * np.sin(seeds)[:, None]  # of the seed, alike for all methods
    own = spread * np.where(np.arange(len(seeds)) % 2, 1, -1)[:, None]
    reward = np.full((len(seeds), 5), 0.5) + luck + gain + own
    curves = {name: np.full_like(reward, 0.3) for name in CURVES} | {"reward": reward}
    if method != "better":
        curves |= {"rests": np.full_like(reward, np.nan), "ends": np.full_like(reward, np.nan)}
    path = measured_file(folder, cell, method)
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez(path, seeds=seeds, **curves)


@pytest.fixture
def results(tmp_path):
    for cell, scale in ((CELL, 1.0), (OTHER, 0.0)):
        for method, gain in GAIN.items():
            spread = 0.1 if method == "noisy" else 0.0 if method in ("grpo", FRESH) else 0.001
            if method == FRESH and cell is OTHER:
                continue  # that of the other cell serves both
            write(tmp_path, cell, method, gain * scale, spread)
    return read_results(tmp_path, [CELL, OTHER], METHODS, ["narrow", "wide"], ["wide"])


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
