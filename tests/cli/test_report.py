"""The command: one run, several runs, globs, folders of runs, and nothing to report on."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.report.synthetic_runs import RunMaker

from bapo_lightning.cli.report import main


def test_one_run_gets_its_summary_and_plots_again(
    make_run: RunMaker, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = make_run("run", num_updates=4)
    assert main([str(folder)]) == 0
    assert (folder / "summary.json").exists()
    assert (folder / "plots" / "overview.png").exists()
    assert "finished after 4 updates" in capsys.readouterr().out


@pytest.mark.slow
def test_one_run_can_be_reported_elsewhere(make_run: RunMaker, tmp_path: Path) -> None:
    folder = make_run("run", num_updates=2)
    assert main([str(folder), "--output", str(tmp_path / "elsewhere")]) == 0
    assert (tmp_path / "elsewhere" / "summary.json").exists()
    assert not (folder / "summary.json").exists()


def test_a_glob_of_runs_makes_a_study_beside_them(
    make_run: RunMaker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for algorithm in ("grpo", "bapo"):
        make_run(f"runs/{algorithm}", algorithm=algorithm, num_updates=4)
    assert main([str(tmp_path / "runs" / "*")]) == 0
    assert {path.name for path in (tmp_path / "runs").iterdir()} == {
        "grpo",
        "bapo",
        "study.csv",
        "study.json",
        "study.png",
    }
    assert "2 of 2 runs" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("argument", "complaint"), [("nowhere", "does not exist"), ("no*", "no folder matches")]
)
def test_nothing_to_report_on_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], argument: str, complaint: str
) -> None:
    assert main([str(tmp_path / argument)]) == 2
    assert complaint in capsys.readouterr().err
