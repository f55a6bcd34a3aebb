"""The leaderboard on made-up curves whose answer is known."""

import numpy as np
import pytest

from bapo_lightning.report.paired import MORE
from studies.map.cells import FIRST_COMPARED, FRESH, MapCell, measured_file
from studies.map.leaderboard import read_boards
from studies.map.leaderboard_page import draw_ranks, duel_table, render_leaderboard, standing_table
from studies.map.picture import MethodLook

LOW, HIGH = (MapCell("table", rate, 8, (("wrong_tokens", 9),)) for rate in (0.01, 0.1))
# Gains by rate on the compared seeds; on those of the gate `lucky` looks better at the low rate.
GAIN = {FRESH: (0.3, 0.4), "grpo": (0.1, 0.2), "bapo": (0.1, 0.3)}
GAIN |= {"lucky": (0.0, 0.35), "broken": (0.0, -0.2)}
METHODS = [name for name in GAIN if name != FRESH]


def write(folder, cell, method, gain, gate_gain):
    seeds = np.array([*range(4), *range(FIRST_COMPARED, FIRST_COMPARED + 6)])
    gains = np.where(seeds < FIRST_COMPARED, gate_gain, gain) * (1 + 0.005 * np.sin(seeds))
    reward = 0.2 + gains[:, None] * np.linspace(0, 2, 6)
    if method == "broken":
        reward[:, 1] = 0.9
    curves = {"reward": reward, "entropy": np.linspace(2, 1, 6) * np.ones((10, 1))}
    path = measured_file(folder, cell, method)
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez(path, seeds=seeds, update_seconds=np.full((10, 1), 0.02), **curves)


@pytest.fixture
def board(tmp_path):
    for method, gains in GAIN.items():
        gate = (0.5, 0.0) if method == "lucky" else gains
        for cell, gain, gate_gain in zip((LOW, HIGH), gains, gate, strict=True):
            write(tmp_path, cell, method, gain, gate_gain)
    (found,) = read_boards(tmp_path, [LOW, HIGH], METHODS, [("bapo", "grpo"), ("bapo", "lucky")])
    return found


def test_rates_are_chosen_on_seeds_that_are_not_shown(board):
    rates = {standing.method: standing.learning_rate for standing in board.standings}
    assert rates == {FRESH: 0.1, "grpo": 0.1, "bapo": 0.1, "lucky": 0.01, "broken": 0.01}
    areas = {standing.method: standing.area.mean for standing in board.standings}
    assert areas["lucky"] == pytest.approx(0.2, abs=0.01), "what luck promised is not what is shown"


def test_standings_are_in_order_and_tell_gap_collapse_and_entropy(board):
    assert [standing.method for standing in board.standings][:3] == [FRESH, "bapo", "grpo"]
    by_name = {standing.method: standing for standing in board.standings}
    assert by_name["bapo"].gap_closed.value == pytest.approx(0.5, abs=0.02)
    for name, share in (("grpo", 0), (FRESH, 1)):
        closed = by_name[name].gap_closed
        assert (closed.value, closed.lower, closed.upper) == pytest.approx((share,) * 3), "by construction"
    assert by_name["broken"].collapse_rate == 1 and by_name["bapo"].collapse_rate == 0
    # In the middle of 0.2 and BAPO's 0.8: BAPO is there at the fourth measurement, GRPO at the fifth.
    assert board.half_way == pytest.approx(0.5, abs=0.01)
    assert by_name["bapo"].entropy_there.mean == pytest.approx(1.4)
    assert by_name["grpo"].entropy_there.mean == pytest.approx(1.2)
    assert by_name["lucky"].reached == 0 and by_name["lucky"].entropy_there is None
    assert by_name["bapo"].update_seconds == 0.02


def test_no_gap_is_closed_where_staleness_costs_nothing_for_certain(tmp_path):
    for method, gain in {FRESH: 0.2, "grpo": 0.2, "bapo": 0.3}.items():
        write(tmp_path, HIGH, method, gain, gain)
    (found,) = read_boards(tmp_path, [HIGH], ["grpo", "bapo"], [("bapo", "grpo")])
    assert [standing.gap_closed for standing in found.standings] == [None] * 3
    assert not any(standing.is_at_edge for standing in found.standings), "there was no choice"


def test_duels_are_paired_at_the_rates_of_each(board):
    duel = board.duels[0]
    assert (duel.method, duel.against, duel.verdict) == ("bapo", "grpo", MORE)
    assert duel.difference.mean == pytest.approx(0.1, abs=0.01) and duel.adjusted >= duel.p


def test_ranks_of_every_rate_and_the_page(board, tmp_path):
    assert board.ranks["lucky"][0.1] == 1 and type(board.ranks["lucky"][0.1]) is int
    assert board.ranks["bapo"][0.01] == board.ranks["grpo"][0.01], "equal methods share their rank"
    labels = {name: name.upper() for name in METHODS}
    means = dict.fromkeys((FRESH, *METHODS), "tokens")
    page = render_leaderboard([board], labels, means, "6 seeds")
    assert "## table (wrong_tokens 9), staleness 8" in page and "| BAPO - GRPO | +0.100" in page
    assert "0.1, edge" in page
    assert len(standing_table([board], labels, means)[1]) == len(board.standings)
    assert duel_table([board], labels)[1][0][1] == "BAPO - GRPO"
    methods = {name: MethodLook(label, name) for name, label in labels.items()}
    assert draw_ranks([board], methods, tmp_path / "ranks.png").stat().st_size > 10_000
