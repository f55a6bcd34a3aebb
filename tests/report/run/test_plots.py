"""PNG files exist, hold a picture, and survive missing data; matplotlib's global state is left alone."""

from __future__ import annotations

import struct
import subprocess
import sys
from pathlib import Path

import pytest
from tests.report.synthetic_runs import RunMaker

from bapo_lightning.report.run.charts import panel_charts, target_share
from bapo_lightning.report.run.plots import plot_run
from bapo_lightning.report.style import Look, algorithm_colour, algorithm_rank, smoothed, smoothing_window
from bapo_lightning.run_folder.record import read_run

NAMES = [
    "reward.png", "entropy.png", "positive_share.png", "bounds.png", "grad_norm.png", "clip_fraction.png",
    "overview.png",
]  # fmt: skip


def png_size(path: Path) -> tuple[int, int]:
    header = path.read_bytes()[:24]
    assert header[:8] == b"\x89PNG\r\n\x1a\n"
    width, height = struct.unpack(">II", header[16:24])
    return width, height


def test_every_plot_and_the_overview_are_drawn(make_run: RunMaker) -> None:
    folder = make_run(num_updates=60)
    paths = plot_run(folder)
    assert paths == [folder / "plots" / name for name in NAMES]
    assert [png_size(path) for path in paths] == [(960, 600)] * 6 + [(2100, 1110)]
    assert all(path.stat().st_size > 10_000 for path in paths)


@pytest.mark.slow
@pytest.mark.parametrize(
    "rows",
    [[], [{"step": 0}], [{"step": 0, "train/reward": 0.5, "train/grad_norm": 0.0, "bapo/clip_low": 0.8}]],
)
def test_runs_with_little_or_nothing_recorded_are_drawn(
    make_run: RunMaker, rows: list[dict[str, float]]
) -> None:
    assert all(path.stat().st_size > 3_000 for path in plot_run(make_run(rows=rows)))


@pytest.mark.slow
def test_plots_can_go_elsewhere(make_run: RunMaker, tmp_path: Path) -> None:
    folder = make_run(num_updates=3)
    plot_run(folder, tmp_path / "elsewhere")
    assert sorted(path.name for path in (tmp_path / "elsewhere" / "plots").iterdir()) == sorted(NAMES)
    assert not (folder / "plots").exists()


@pytest.mark.slow
def test_drawing_never_imports_pyplot(make_run: RunMaker) -> None:
    code = (
        "import sys; from bapo_lightning.report.run.plots import plot_run; plot_run(sys.argv[1]); assert "
        "'matplotlib.pyplot' not in sys.modules"
    )
    finished = subprocess.run(
        [sys.executable, "-c", code, str(make_run(num_updates=2))],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (finished.returncode, finished.stderr) == (0, "")


def test_an_algorithm_keeps_its_colour_and_place() -> None:
    algorithms = ["zebra", "bapo", "bapo_authors_code", "grpo", "dapo"]
    assert [algorithm_colour(name) for name in algorithms[1:]] == ["#0072B2", "#CC79A7", "#D55E00", "#009E73"]
    assert algorithm_colour("zebra") == algorithm_colour("zebra")
    assert sorted(algorithms, key=algorithm_rank) == ["grpo", "dapo", "bapo", "bapo_authors_code", "zebra"]


def test_the_leading_curve_has_the_colour_of_the_algorithm(make_run: RunMaker) -> None:
    charts = panel_charts(read_run(make_run(algorithm="grpo", num_updates=4)))
    assert [chart.curves[0].look for chart in charts[:3]] == [Look("#d55e00", "-")] * 3
    assert [chart.curves[0].metric for chart in charts[:3]] == [chart.main for chart in charts[:3]]


def test_smoothing_keeps_the_length_and_shrinks_at_the_ends() -> None:
    assert smoothed([0.0, 3.0, 6.0, 0.0], 3) == [1.5, 3.0, 3.0, 3.0]
    assert smoothed([5.0], 7) == [5.0]
    assert [smoothing_window(count) for count in (1, 29, 30, 150)] == [1, 1, 3, 11]


def test_smoothing_over_whole_rollout_batches_removes_their_saw_tooth() -> None:
    assert [smoothing_window(count, 8) for count in (15, 16, 120, 320)] == [1, 8, 8, 24]
    saw_tooth = [float(step % 4) for step in range(16)]
    assert set(smoothed(saw_tooth, 4)[2:-1]) == {1.5}


@pytest.mark.parametrize(
    ("config", "target"),
    [
        ({"algorithm": {"bounds": {"target": 0.4, "measure": "share"}}}, (0.4, "gradient")),
        (
            {"algorithm": {"bounds": {"target": 1.0, "measure": "ratio", "kind": "surrogate"}}},
            (0.5, "surrogate"),
        ),
        ({"algorithm": {"target": 0.45}}, (0.45, "gradient")),
        ({"algorithm": {"bounds": {"target": None}}}, None),
        ({"algorithm": "grpo"}, None),
        ({}, None),
    ],
)
def test_the_target_is_found_and_shown_as_a_share(
    config: dict[str, object], target: tuple[float, str] | None
) -> None:
    assert target_share(config) == target
