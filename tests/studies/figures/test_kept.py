"""Every picture of a page has its data, command and commit, and is drawn again from kept curves."""

import csv
import re
from pathlib import Path

import pytest

from bapo_lightning.system.errors import DataError
from studies.figures import one_run
from studies.figures.catalogue import read_figure, read_protocol
from studies.figures.draw import draw_figures
from studies.figures.kept import POINTS, read_kept, thinned, write_kept

ROOT = Path(__file__).resolve().parents[3]
SOURCES = [*csv.DictReader((ROOT / "docs/results/figures/sources.csv").open(newline=""))]
KEPT = [row for row in SOURCES if row["data"].startswith("docs/results/figures/")]
SINGLE = [row for row in KEPT if "curves.csv" not in row["data"]]
DRAWINGS = {"docs/regimes.svg"}  # without a measurement


def test_every_picture_of_a_page_has_its_data_with_a_command_and_a_commit():
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    shown = {
        (page.parent / link).resolve().relative_to(ROOT).as_posix()
        for page in pages
        for link in re.findall(r"!\[.*?\]\(([^)\s]+\.(?:png|svg))\)", page.read_text())
        if not link.endswith("/badge.svg")
    }
    assert {row["picture"] for row in SOURCES} == shown - DRAWINGS
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for row in SOURCES:
        assert row["command"].split()[0] == "make" and row["command"].split()[1] in targets, row
        assert re.fullmatch(r"[0-9a-f]{7,12}", row["commit"]), row
        assert row["data"] == "a page on screen" or (ROOT / row["data"]).is_file(), row
    assert sum((ROOT / data).stat().st_size for data in {row["data"] for row in KEPT}) < 300_000


def test_the_claims_of_kept_figures_are_judged_from_their_curves(tmp_path):
    names = [Path(row["picture"]).stem.removeprefix("figure_") for row in KEPT if row not in SINGLE]
    figures = [read_figure(name, read_protocol()) for name in names]
    path = ROOT / "docs/results/figures/curves.csv"
    findings = draw_figures(figures, tmp_path, {}, [], path)
    assert "no data" not in {verdict.verdict for verdict in findings.verdicts}
    page = (ROOT / "docs/results/paper_figures.md").read_text()
    texts = [verdict.interval.text(3, sign="+") for verdict in findings.verdicts]
    quoted = "-0.041 ± 0.015", "+0.013 ± 0.007", "+0.014 ± 0.065"
    assert all(text in texts and text in page for text in quoted)
    assert {source.seeds for source in findings.sources.values()} == {(1, 2, 3, 4, 5)}


@pytest.mark.parametrize("row", SINGLE, ids=lambda row: Path(row["data"]).stem)
def test_a_file_of_curves_says_where_it_is_from_and_redraws_to_the_same_values(row, tmp_path, monkeypatch):
    path, canvases = ROOT / row["data"], []
    head = path.read_text().splitlines()[0]
    assert head.startswith(f"# {row['command']}; commit {row['commit']}")
    kept = read_kept(path)
    copy = write_kept(tmp_path / path.name, kept, row["command"], [head.rpartition(" ")[2]])
    assert copy.read_bytes() == path.read_bytes()
    monkeypatch.setattr(one_run.style, "save_png", lambda canvas, to: canvases.append(canvas) or to)
    assert one_run.draw(copy) == copy.with_suffix(".png")
    ((_, curves),) = kept.items()
    raw = {tuple(axes.collections[-1].get_offsets()[:, 1]) for axes in canvases[0].axes if axes.collections}
    lines = {tuple(line.get_ydata()) for axes in canvases[0].axes for line in axes.lines}
    assert {tuple(curves[name][1]) for name in ("policy/entropy", "train/grad_norm")} <= raw | lines


def test_long_curves_become_means_and_jumps_stay():
    steps = [*range(2 * POINTS)]
    assert thinned("train/reward", (steps, [0.0, 1.0] * POINTS)) == (
        [*range(1, 2 * POINTS, 2)],
        [0.5] * POINTS,
    )
    assert thinned("train/grad_norm", (steps, [1.0, 4.0] * POINTS))[1] == pytest.approx([2.0] * POINTS)
    jumps = steps, [1.2, 3.0] * POINTS
    assert thinned("bapo/clip_high", jumps) == jumps


@pytest.mark.parametrize(
    "text", ["", "# x\na,b\n1,2\n", "# x\nvariant,seed,name,steps,values\na,0,b,1:x,2\n"]
)
def test_another_file_is_refused_with_its_name(text, tmp_path):
    (tmp_path / "mine.csv").write_text(text)
    with pytest.raises(DataError, match=r"mine\.csv holds no curves of figures"):
        read_kept(tmp_path / "mine.csv")
