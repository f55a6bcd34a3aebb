"""PNG files hold a picture and survive missing data; matplotlib's global state is left alone."""

import struct

import pytest

from bapo_lightning.report.run.charts import panel_charts, target_share
from bapo_lightning.report.run.curves import moving_average, smoothing_window
from bapo_lightning.report.run.plots import plot_run
from bapo_lightning.report.style import Look
from bapo_lightning.system.run_folder.record import read_run

PANELS = ("reward", "entropy", "positive_share", "bounds", "grad_norm", "clip_fraction")
NAMES = [f"{name}.png" for name in (*PANELS, "overview")]


def png_size(path):
    header = path.read_bytes()[:24]
    assert header[:8] == b"\x89PNG\r\n\x1a\n"
    return struct.unpack(">II", header[16:24])


def test_every_plot_and_the_overview_are_drawn(make_run, tmp_path):
    folder = make_run(num_updates=60)
    paths = plot_run(folder, tmp_path / "elsewhere")
    assert paths == [tmp_path / "elsewhere" / "plots" / name for name in NAMES]
    assert not (folder / "plots").exists()
    assert [png_size(path) for path in paths] == [(960, 600)] * 6 + [(2100, 1110)]
    assert all(path.stat().st_size > 10_000 for path in paths)


@pytest.mark.slow
@pytest.mark.parametrize(
    "rows", [[], [{"step": 0, "train/reward": 0.5, "train/grad_norm": 0.0, "bapo/clip_low": 0.8}]]
)
def test_runs_with_little_or_nothing_recorded_are_drawn(make_run, rows):
    folder = make_run(rows=rows)
    assert all(path.stat().st_size > 3_000 for path in plot_run(folder))
    assert sorted(path.name for path in (folder / "plots").iterdir()) == sorted(NAMES)


def test_the_leading_curve_has_the_colour_of_the_algorithm(make_run):
    charts = panel_charts(read_run(make_run(algorithm="grpo", num_updates=4)))
    assert [chart.curves[0].look for chart in charts[:3]] == [Look("#d55e00", "-")] * 3
    assert [chart.curves[0].metric for chart in charts[:3]] == [chart.main for chart in charts[:3]]


def test_smoothing_keeps_the_length_and_shrinks_at_the_ends():
    assert moving_average([0.0, 3.0, 6.0, 0.0], 3) == [1.5, 3.0, 3.0, 3.0]
    assert moving_average([5.0], 7) == [5.0]
    assert [smoothing_window(count) for count in (1, 29, 30, 150)] == [1, 1, 3, 11]
    # Whole rollout batches, without their saw-tooth.
    assert [smoothing_window(count, 8) for count in (15, 16, 120, 320)] == [1, 8, 8, 24]
    saw_tooth = [float(step % 4) for step in range(16)]
    assert set(moving_average(saw_tooth, 4)[2:-1]) == {1.5}


@pytest.mark.parametrize(("algorithm", "target"), [
    ({"bounds": {"target": 0.4, "measure": "share"}}, (0.4, "gradient")),
    ({"bounds": {"target": 1.0, "measure": "ratio", "kind": "surrogate"}}, (0.5, "surrogate")),
    ({"target": 0.45}, (0.45, "gradient")),
    ({"bounds": {"target": None}}, None),
    ("grpo", None),
    (None, None),
])  # fmt: skip
def test_the_target_is_found_and_shown_as_a_share(algorithm, target):
    assert target_share({"algorithm": algorithm} if algorithm else {}) == target
